"""The same values through three other implementations, kio, kafka-python and Kafka's Java classes, give our bytes.

What they read is compared too, so that two fields of one type cannot have changed places.
"""

import base64
import datetime
import enum
import importlib
import io
import json
import os
import random
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire import headers, messages
from barnabas.wire.codec import decode, encode
from barnabas.wire.messages.api_versions import ApiVersionsResponse
from barnabas.wire.names import topic_id_to_text
from barnabas.wire.schema import Message
from tests.support.required import tool_missing
from tools.processes import children
from tools.wiregen.jars import fetch

pytestmark = pytest.mark.slow

Sample = Callable[..., Any]
Java = Callable[[str], Any]

ZOOKEEPER_MODE_APIS = (4, 5, 6, 7, 56, 67)
"""The APIs that Kafka 4 has no longer, or without their lower versions: judged by 3.9.1."""

OWN_TAG_MIN = 10_000
"""Tags of fields that Kafka does not know (`OWN_FIELDS` of `tools/wiregen/selection.py`)."""

COORDINATOR_JARS = ("kafka-group-coordinator-4.3.0.jar", "kafka-transaction-coordinator-4.3.0.jar")


KIO_LACKS = frozenset(
    {
        "ControlledShutdownRequest",
        "ControlledShutdownResponse",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "LeaderAndIsrRequest",
        "LeaderAndIsrResponse",
        "LegacyOffsetCommitKey",
        "LegacyOffsetCommitValue",
        "OffsetCommitKey",
        "OffsetCommitValue",
        "StopReplicaRequest",
        "StopReplicaResponse",
        "TransactionLogKey",
        "TransactionLogValue",
        "UpdateMetadataRequest",
        "UpdateMetadataResponse",
    }
)
"""Messages that kio has no class of: ZooKeeper-era requests and coordinator records."""
KIO_LACKS_VERSIONS = {"AlterPartitionRequest": [0, 1], "AlterPartitionResponse": [0, 1]}
"""Versions that it lacks of messages that it has."""

KAFKA_PYTHON_LACKS = frozenset(
    {
        "AllocateProducerIdsRequest",
        "AllocateProducerIdsResponse",
        "AlterPartitionRequest",
        "AlterPartitionResponse",
        "ConsumerGroupDescribeRequest",
        "ConsumerGroupDescribeResponse",
        "ConsumerGroupHeartbeatRequest",
        "ConsumerGroupHeartbeatResponse",
        "ConsumerProtocolAssignment",
        "ConsumerProtocolSubscription",
        "ControlledShutdownRequest",
        "ControlledShutdownResponse",
        "CreateDelegationTokenRequest",
        "CreateDelegationTokenResponse",
        "DescribeDelegationTokenRequest",
        "DescribeDelegationTokenResponse",
        "EndTxnMarker",
        "EnvelopeRequest",
        "EnvelopeResponse",
        "ExpireDelegationTokenRequest",
        "ExpireDelegationTokenResponse",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "LeaderAndIsrRequest",
        "LeaderAndIsrResponse",
        "LegacyOffsetCommitKey",
        "LegacyOffsetCommitValue",
        "OffsetCommitKey",
        "OffsetCommitValue",
        "RenewDelegationTokenRequest",
        "RenewDelegationTokenResponse",
        "StopReplicaRequest",
        "StopReplicaResponse",
        "TransactionLogKey",
        "TransactionLogValue",
        "UpdateMetadataRequest",
        "UpdateMetadataResponse",
    }
)
"""Messages that kafka-python has no class of."""


def versions(message_class: type[Message]) -> range:
    return range(message_class.VALID_VERSIONS[0], message_class.VALID_VERSIONS[1] + 1)


def plain(value: Any, version: int, *, tagged: bool = True) -> Any:
    """Structs as lists of their values, in the order of definition, without the fields that the version lacks."""
    if isinstance(value, Message):
        fields = [field for field in value.FIELDS if field.exists_in(version) and (tagged or field.tag is None)]
        return [plain(getattr(value, field.name), version, tagged=tagged) for field in fields]
    if isinstance(value, list):
        return [plain(element, version, tagged=tagged) for element in value]
    return bytes(value) if isinstance(value, memoryview) else value


def zero_as_none(value: Any) -> Any:
    """Both Python libraries read the zero UUID as None."""
    if isinstance(value, list):
        return [zero_as_none(element) for element in value]
    return None if value == bytes(16) and isinstance(value, bytes) else value


# kio


def kio_entity(message_class: type[Message], version: int) -> Any:
    """kio's class of one version, or None."""
    match = re.fullmatch(r"(\w+?)(Request|Response)?", message_class.__name__)
    assert match
    name, kind = match.groups()
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{(kind or 'data').lower()}")
    except ModuleNotFoundError:
        return None
    return getattr(module, message_class.__name__)


def kio_plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return [kio_plain(getattr(value, name)) for name in value.__dataclass_fields__ if not name.startswith("__")]
    if isinstance(value, tuple):
        return [kio_plain(element) for element in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value.value if isinstance(value, enum.Enum) else value


def test_kio_agrees(message_class: type[Message], sample: Sample) -> None:
    from kio.serial import entity_reader, entity_writer

    name = message_class.__name__
    lacked = []
    for version in versions(message_class):
        entity = kio_entity(message_class, version)
        if entity is None:
            lacked.append(version)
            continue
        read, write = entity_reader(entity), entity_writer(entity)
        for seed in range(6):
            message = sample(message_class, version, random.Random(seed), modest=True)
            encoded = encode(message, version)
            theirs, size = read(encoded, 0)
            assert size == len(encoded)
            assert kio_plain(theirs) == zero_as_none(plain(message, version))
            out = io.BytesIO()
            write(out, theirs)
            assert out.getvalue() == encoded
    assert lacked == (list(versions(message_class)) if name in KIO_LACKS else KIO_LACKS_VERSIONS.get(name, []))


# kafka-python


def kafka_python_class(message_class: type[Message]) -> Any:
    if not message_class.__name__.endswith(("Request", "Response")):
        return None
    for package in ("admin", "consumer", "metadata", "producer", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{package}"), message_class.__name__, None)
        if found is not None:
            return found
    return None


def kafka_python_plain(value: Any) -> Any:
    """Without tagged fields: absent ones it reads as None. What it writes shows whether it read them right."""
    if hasattr(value, "_struct"):
        fields = [field for field in value._struct._fields if field.for_version_q(value.version) and field._tag is None]
        return [kafka_python_plain(getattr(value, field.name)) for field in fields]
    if isinstance(value, list | tuple):
        return [kafka_python_plain(element) for element in value]
    if isinstance(value, set):  # of bits
        unsigned = sum(1 << bit for bit in value)
        return unsigned - (1 << 32) if unsigned >> 31 else unsigned
    if isinstance(value, uuid.UUID):
        return value.bytes
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.filterwarnings("ignore:\\w+_text is deprecated:DeprecationWarning")  # how it loads its schemas
def test_kafka_python_agrees(message_class: type[Message], sample: Sample) -> None:
    theirs_class = kafka_python_class(message_class)
    if theirs_class is None:
        assert message_class.__name__ in KAFKA_PYTHON_LACKS
        return
    for version in versions(message_class):
        assert theirs_class.min_version <= version <= theirs_class.max_version
        for seed in range(6):
            message = sample(message_class, version, random.Random(seed), modest=True)
            if message_class is ApiVersionsResponse:
                message.error_code = 0  # else it reads version 0
            encoded = encode(message, version)
            theirs = theirs_class.decode(encoded, version=version)
            assert kafka_python_plain(theirs) == zero_as_none(plain(message, version, tagged=False))
            theirs._header = None
            assert bytes(theirs.encode(version=version)) == encoded


# Kafka's own classes


@pytest.fixture(scope="module")
def jvm() -> Iterator[Callable[[str], Any]]:
    """A call with Kafka's version gives a virtual machine that has its classes; each is started once."""
    import pyspark
    from py4j import java_gateway as py4j

    if shutil.which("java") is None:
        tool_missing("there is no Java here")
    spark_jars = Path(pyspark.__file__).parent / "jars"
    gateways: dict[str, Any] = {}

    def start(release: str) -> Any:
        if release not in gateways:
            jars = [f"kafka-clients-{release}.jar", *(COORDINATOR_JARS if release == "4.3.0" else ())]
            libraries = [path for path in spark_jars.glob("*.jar") if path.name.startswith(("jackson-", "slf4j-api"))]
            gateways[release] = py4j.JavaGateway.launch_gateway(
                classpath=os.pathsep.join(map(str, [*map(fetch, jars), *libraries])),
                jarpath=str(next(spark_jars.glob("py4j*.jar"))),
                javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
                die_on_exit=True,
            )
        return gateways[release].jvm

    yield start
    for gateway in gateways.values():
        process = gateway.java_process
        gateway.shutdown()
        process.stdin.close()
        process.stdout.close()
        children.wait(process)


def to_json(value: Any, version: int, kind: Any = None) -> Any:
    """The input of Kafka's JsonConverter classes: its own names, bytes in base64, and no field that the version
    lacks."""
    if isinstance(value, Message):
        fields = [field for field in value.FIELDS if field.exists_in(version)]
        return {java_name(field.name): to_json(getattr(value, field.name), version, field.type) for field in fields}
    if isinstance(value, list):
        return [to_json(element, version, kind.element) for element in value]
    if kind == "uuid":
        return topic_id_to_text(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def without_own_fields(value: Any) -> Any:
    """The message as Kafka could have made it: what our brokers tell each other beyond that is at its default."""
    if isinstance(value, list):
        for element in value:
            without_own_fields(element)
    if isinstance(value, Message):
        for field in value.FIELDS:
            if field.tag is not None and field.tag >= OWN_TAG_MIN:
                setattr(value, field.name, field.default)
            else:
                without_own_fields(getattr(value, field.name))
    return value


def java_name(name: str) -> str:
    first, *rest = name.split("_")
    return (first + "".join(word.capitalize() for word in rest)).replace("Kraft", "KRaft")


def java_package(java: Any, name: str) -> Any:
    if name.startswith("TransactionLog"):
        return java.org.apache.kafka.coordinator.transaction.generated
    if name.startswith(("OffsetCommit", "LegacyOffsetCommit", "GroupMetadata")) and name.endswith(("Key", "Value")):
        return java.org.apache.kafka.coordinator.group.generated
    return java.org.apache.kafka.common.message


def kafka_release(api_key: int | None) -> str:
    return "3.9.1" if api_key in ZOOKEEPER_MODE_APIS else "4.3.0"


@pytest.mark.java
@pytest.mark.parametrize("api_key", sorted(messages.API_NAMES))
def test_kafka_agrees_on_headers(api_key: int, jvm: Java) -> None:
    """In its own header version for every request, and with client ids that Kafka writes itself."""
    release = kafka_release(api_key)
    java = jvm(release)
    common, protocol = java.org.apache.kafka.common, java.org.apache.kafka.common.protocol
    api = protocol.ApiKeys.forId(api_key)

    def written(header: Any, header_version: int) -> bytes:
        if release == "3.9.1":
            return bytes(protocol.MessageUtil.toByteBuffer(header, header_version).array())
        return bytes(protocol.MessageUtil.toByteBufferAccessor(header, header_version).buffer().array())

    def reader(encoded: bytes) -> Any:
        return protocol.ByteBufferAccessor(java.java.nio.ByteBuffer.wrap(encoded))

    for version in versions(messages.api(api_key).request_class):
        header_version = api.requestHeaderVersion(version)
        for client_id in (None, "", "grüße"):
            theirs = common.message.RequestHeaderData()
            theirs.setRequestApiKey(api_key).setRequestApiVersion(version).setCorrelationId(77)
            if header_version > 0:
                theirs.setClientId(client_id)
            encoded = headers.request_header(api_key, version, 77, client_id)
            assert written(theirs, header_version) == encoded
            assert common.message.RequestHeaderData(reader(encoded), header_version).equals(theirs)
            ours = headers.parse_request_header(encoded + b"body")
            assert (ours.api_key, ours.api_version, ours.correlation_id) == (api_key, version, 77)
            assert (ours.client_id, ours.body_position) == (client_id if header_version else None, len(encoded))
        header_version = api.responseHeaderVersion(version)
        theirs = common.message.ResponseHeaderData().setCorrelationId(-5)
        encoded = headers.response_header(api_key, version, -5)
        assert written(theirs, header_version) == encoded
        assert common.message.ResponseHeaderData(reader(encoded), header_version).equals(theirs)
        assert headers.parse_response_header(encoded + b"body", api_key, version) == (-5, len(encoded))


@pytest.mark.java
def test_kafka_agrees(message_class: type[Message], sample: Sample, jvm: Java) -> None:
    name = message_class.__name__
    is_request_or_response = name.endswith(("Request", "Response"))
    release = kafka_release(message_class.API_KEY if is_request_or_response else None)
    is_old = release == "3.9.1"
    java = jvm(release)
    protocol = java.org.apache.kafka.common.protocol
    to_bytes = protocol.MessageUtil.toByteBuffer if is_old else protocol.MessageUtil.toByteBufferAccessor
    package = java_package(java, name)
    suffix = "Data" if is_request_or_response else ""
    data_class = getattr(package, name + suffix)
    converter = getattr(package, f"{name}{suffix}JsonConverter")
    mapper = java.com.fasterxml.jackson.databind.ObjectMapper()
    for version in versions(message_class):
        for seed in range(12):  # enough that every field is seen with a value, and every nullable one null
            message = without_own_fields(sample(message_class, version, random.Random(seed)))
            encoded = encode(message, version)
            theirs = converter.read(mapper.readTree(json.dumps(to_json(message, version))), version)
            theirs_encoded = to_bytes(theirs, version)
            assert (theirs_encoded if is_old else theirs_encoded.buffer()).array() == encoded
            accessor = protocol.ByteBufferAccessor(java.java.nio.ByteBuffer.wrap(encoded))
            assert data_class(accessor, version).equals(theirs)
            assert decode(message_class, version, encoded) == message
