"""Published vulnerabilities of Kafka, its clients and Python, replayed against a whole broker: each attack is refused, and
beside it the legitimate use works, its control.

| class | published as | tests | what holds |
|---|---|---|---|
| allocation from a length | CVE-2022-34917 | test_lengths_before_the_login; abuse/test_connections (A4), abuse/test_requests (A6) | a length is compared with what may come and has come; 512 KiB before the login |
| decompressors | CVE-2023-34455 | test_lengths_in_compressed_records; abuse/test_batches (A8) | an error of the batch; memory in A8 |
| a client that claims to be a replica | CVE-2018-1288 | test_clients_that_claim_to_be_replicas; handlers/test_between_brokers | the secret of brokers, or ClusterAction |
| transactional batches without the id's ACL | CVE-2018-17196 | test_transactional_batches_without_the_id; handlers/test_authorization | each batch counts, wherever it is |
| acting for another user | CVE-2017-12610 | test_authorization_ids; sasl/test_oauthbearer | refused, also with the right password |
| SCRAM's nonce | CVE-2024-56128 | test_replayed_and_changed_scram_messages; sasl/test_scram | whole nonce, proof and channel binding |
| timing of comparisons | CVE-2021-38153 | test_unknown_users_look_like_known_ones; sasl/test_timing | compare_digest; the same answers |
| removal of one ACL of several | CVE-2024-27309 | whole/test_acls | the others hold on each broker, after restarts and elections |
| configuration as code, file or URL | CVE-2023-25194, CVE-2025-27817, CVE-2025-27818 | test_no_config_is_code_or_an_address; test_login_modules_are_names | no import, process, connection; no file but key stores, for who may alter configs |
| secrets in descriptions | CVE-2019-12399 | test_secrets_in_descriptions_of_configs; compat_tests/security/test_secrets | null, also in synonyms |
| a buffer that is used again | CVE-2026-35554 | test_buffers_are_not_used_again | each record is in its topic, whole |
| asyncio's writelines | CVE-2024-12254 | test_unread_responses_of_writelines; abuse/test_connections (A10) | a client that does not read is served one response |
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import re
import struct
import sys
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security_properties import SecurityProperties
from barnabas.broker.configuration.changes import BROKER, TOPIC
from barnabas.broker.configuration.config import ConfigError, load
from barnabas.broker.configuration.keys import BROKER_KEYS
from barnabas.broker.configuration.topics import TOPIC_KEYS
from barnabas.broker.handlers import apis_between_brokers, load_handler
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.broker.security.sasl.scram_credentials import client_key, salted_password, xor
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import request_header
from barnabas.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.fetch import ReplicaState
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.record_batch import CompressionType, iter_headers, parse_header
from barnabas.wire.records import assemble_batch, iter_records
from tests.broker.network.test_connection import Peer
from tests.broker.running import running
from tests.broker.sasl_clients import ALICE, Wire, wire
from tests.broker.security.replays.secured import (
    CAROL,
    MIB,
    READ_T,
    SECURED,
    WRITE_T,
    batch,
    fetching,
    logged_in,
    produced,
    producing,
    secured,
    values_of,
)

pytestmark = pytest.mark.anyio

INT_MAX: Final = 2**31 - 1


# --- lengths --------------------------------------------------------------------------------------


def framed(key: int, version: int, body: bytes) -> bytes:
    content = request_header(key, version, 1, "c") + body
    return struct.pack(">i", len(content)) + content


LENGTHS: Final = {
    "frame of 2 GiB": struct.pack(">i", INT_MAX),
    "frame of 512 KiB and a byte": struct.pack(">i", 512 * 1024 + 1),
    "negative frame": struct.pack(">i", -1),
    "SASL message of 2 GiB": framed(36, 0, struct.pack(">i", INT_MAX) + b"\0a\0b"),
    "compact SASL message of 2 GiB": framed(36, 2, b"\xff\xff\xff\xff\x0f"),
    "mechanism of 32 KiB": framed(17, 1, struct.pack(">h", 32_767) + b"PLAIN"),
    "software name of 4 GiB": framed(18, 3, b"\xff\xff\xff\xff\x0f" + b"name"),
    "tagged fields without end": framed(18, 3, b"\x01\x01" + b"\xff\xff\xff\xff\x0f"),
}


@pytest.mark.slow
async def test_lengths_before_the_login(tmp_path: Path) -> None:
    """CVE-2022-34917: a length that a client claims allocates nothing."""
    async with secured(tmp_path) as broker:
        tracemalloc.start()
        try:
            for name, data in LENGTHS.items():
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                async with wire(broker) as stranger:
                    stranger.writer.write(data)
                    assert await stranger.is_closed(), name
                assert tracemalloc.get_traced_memory()[1] - before < MIB, name
        finally:
            tracemalloc.stop()
        async with logged_in(broker, ALICE) as client:  # after the login, requests may be large
            assert await produced(client, producing(batch(bytes(700_000)))) == [ErrorCode.NONE]


def xerial(*lengths_and_blocks: bytes | int) -> bytes:
    parts = [struct.pack(">i", each) if isinstance(each, int) else each for each in lengths_and_blocks]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(parts)


COMPRESSED: Final = {
    "xerial block of 2 GiB": (CompressionType.SNAPPY, xerial(INT_MAX, b"short")),
    "negative xerial block": (CompressionType.SNAPPY, xerial(-1, b"short")),
    "snappy that claims 4 GiB": (CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "zstd that claims 4 GiB": (CompressionType.ZSTD, bytes.fromhex("28b52ffda0fffffffe") + bytes(20)),
    "lz4 block of 2 GiB": (CompressionType.LZ4, bytes.fromhex("04224d186040 82ffffff7f") + bytes(20)),
    "gzip that is cut off": (CompressionType.GZIP, bytes.fromhex("1f8b0800000000000003") + bytes(20)),
}


async def test_lengths_in_compressed_records(tmp_path: Path) -> None:
    """CVE-2023-34455, where the broker opens batches: to compress them in another way."""
    async with (
        secured(tmp_path, opened={"compression.type": "uncompressed"}) as broker,
        logged_in(broker, ALICE) as client,
    ):
        for name, (codec, payload) in COMPRESSED.items():
            header = parse_header(batch())._replace(attributes=codec, record_count=1)
            errors = await produced(client, producing(assemble_batch(header, payload), topic="opened"))
            assert errors in ([ErrorCode.CORRUPT_MESSAGE], [ErrorCode.INVALID_RECORD]), name
        for codec in CompressionType:
            compressed = batch(b"of this codec" * 1_000, compression=codec)
            assert await produced(client, producing(compressed, topic="opened")) == [ErrorCode.NONE], codec
        response = await client.ask(fetching("opened"), 12)
        [found] = [partition for topic in response.responses for partition in topic.partitions]
        values = [record.value for each in iter_headers(found.records) for record in iter_records(found.records, each)]
        assert values == [b"of this codec" * 1_000] * len(CompressionType)


# --- replicas and transactions --------------------------------------------------------------------


async def test_clients_that_claim_to_be_replicas(tmp_path: Path) -> None:
    """CVE-2018-1288: a client that sends the id of a broker reads no uncommitted records, and moves no offset."""
    describe = (Operation.DESCRIBE, ResourceType.TOPIC, "t")
    async with secured(tmp_path, READ_T, describe) as broker, logged_in(broker) as client:
        async with logged_in(broker, ALICE) as admin:
            assert await produced(admin, producing(batch())) == [ErrorCode.NONE]
        refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        listed = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for replica_id, is_consumer in ((-1, True), (broker.node_id, False), (7, False)):
            by_id = fetching(replica_state=ReplicaState(replica_id=replica_id))
            by_id.topics[0].topic_id = broker.metadata.topic_id("t")
            for request, version in ((fetching(replica_id=replica_id), 12), (by_id, 17)):
                fetched = (await client.ask(request, version)).responses[0].partitions[0]
                assert (fetched.error_code, bool(fetched.records)) == (0 if is_consumer else refusal, is_consumer)
        for replica_id, expected in (
            (-1, (0, 1)),
            (broker.node_id, (refusal, -1)),
            (7, (refusal, -1)),
            (-2, (refusal, -1)),
        ):
            answer = await client.ask(ListOffsetsRequest(replica_id=replica_id, topics=[listed]), 7)
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.offset) == expected
        for key in sorted(apis_between_brokers()):
            answer = await client.ask(messages.api(key).request_class(), load_handler(key).max_version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, key
        marked = WritableTxnMarker(producer_id=1, topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])
        answer = await client.ask(WriteTxnMarkersRequest(markers=[marked]), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        # The control: a broker, which knows its secret, and whose listener it is.
        own = plain.Client(credentials_of_broker(broker.node_id, broker._secret))
        async with wire(broker, "BROKERS") as peer:
            assert (await peer.log_in(own)).error_code == ErrorCode.NONE
            answer = await peer.ask(ListOffsetsRequest(replica_id=broker.node_id, topics=[listed]), 7)
            assert answer.topics[0].partitions[0].offset == 1


async def producer(client: Wire, transactional_id: str) -> dict[str, int]:
    """The id and the epoch of a transactional producer, and its first sequence."""
    find = FindCoordinatorRequest(key=transactional_id, key_type=1)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    loading = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    while (await client.ask(find, 2)).error_code in loading:
        pass
    while (made := await client.ask(request, 4)).error_code in loading:
        pass
    assert made.error_code == ErrorCode.NONE
    return {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch, "base_sequence": 0}


async def test_transactional_batches_without_the_id(tmp_path: Path) -> None:
    """CVE-2018-17196: bob may write to the topic, and use the transactional id "own", not that of alice."""
    own = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "own")
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    async with (
        secured(tmp_path, WRITE_T, own) as broker,
        logged_in(broker, ALICE) as admin,
        logged_in(broker) as client,
    ):
        ids = {"of-alice": await producer(admin, "of-alice"), "own": await producer(client, "own")}
        of_alice = batch(transactional=True, **ids["of-alice"])
        for name in (None, "of-alice"):
            for batches in ([of_alice], [batch(), of_alice], [of_alice, batch()]):
                errors = await produced(client, producing(*batches, transactional_id=name))
                assert errors == [refused] * len(batches), name
        mismatched = await produced(client, producing(batch(), of_alice, transactional_id="own"))
        assert ErrorCode.NONE not in mismatched[1:]
        assert broker.replicas.partition_or_error("t", 1).log.log_end_offset == 0
        assert await produced(client, producing(batch())) == [ErrorCode.NONE]
        within = producing(batch(transactional=True, **ids["own"]), transactional_id="own")
        assert (await client.ask(within, 12)).responses[0].partition_responses[0].error_code == ErrorCode.NONE


# --- logins ---------------------------------------------------------------------------------------


async def answered(client: Wire, mechanism: str, *sent: bytes) -> Any:
    """The response to the last of these messages."""
    assert (await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)).error_code == ErrorCode.NONE
    for each in sent:
        response = await client.ask(SaslAuthenticateRequest(auth_bytes=each), 2)
    return response


async def test_authorization_ids(tmp_path: Path) -> None:
    """CVE-2017-12610: bob's password does not make him alice, nor does carol's."""
    cases = {
        b"alice\0bob\0b-secret": False,
        b"bob\0bob\0b-secret": True,
        b"\0bob\0b-secret": True,
    }
    async with secured(tmp_path) as broker:
        for message, is_right in cases.items():
            async with wire(broker) as client:
                response = await answered(client, "PLAIN", message)
                assert (response.error_code == ErrorCode.NONE) is is_right, message
                principals = [each.session.principal for each in broker.connections]
                assert ("User:bob" in principals) is is_right, message
        for first, is_right in ((b"n,a=alice,n=carol,r=abc", False), (b"n,a=carol,n=carol,r=abc", True)):
            async with wire(broker) as client:
                response = await answered(client, "SCRAM-SHA-256", first)
                assert (response.error_code == ErrorCode.NONE) is is_right, first


SCRAM: Final = "SCRAM-SHA-256"
BARE: Final = f"n={CAROL.username},r=carols"


def final_message(challenge: str, nonce: str, binding: str = "biws") -> bytes:
    """carol's final message, with the right proof for this nonce and channel binding."""
    _, salt, iterations = (part[2:] for part in challenge.split(","))
    key = client_key("sha256", salted_password("sha256", CAROL.password, b64decode(salt), int(iterations)))
    without_proof = f"c={binding},r={nonce}"
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{BARE},{challenge},{without_proof}".encode(), "sha256")
    return f"{without_proof},p={b64encode(xor(key, signature)).decode()}".encode()


async def test_replayed_and_changed_scram_messages(tmp_path: Path) -> None:
    """CVE-2024-56128: a client that does not answer this challenge is refused, though it knows the password; so is one
    that has recorded another login, or signs another channel binding."""
    first, recorded = f"n,,{BARE}".encode(), b""
    finals: dict[str, Callable[[str, str], bytes]] = {
        "the control": final_message,
        "an earlier login": lambda challenge, nonce: recorded,
        "more before the nonce": lambda challenge, nonce: final_message(challenge, f"other{nonce}"),
        "the server's part": lambda challenge, nonce: final_message(challenge, nonce.removeprefix("carols")),
        "the client's part": lambda challenge, nonce: final_message(challenge, "carols"),
        "a channel binding": lambda challenge, nonce: final_message(challenge, nonce, "eSws"),
    }
    async with secured(tmp_path) as broker:
        for name, final in finals.items():
            async with wire(broker) as client:
                challenge = bytes((await answered(client, SCRAM, first)).auth_bytes).decode()
                sent = final(challenge, challenge[2:].partition(",")[0])
                recorded = recorded or sent
                response = await client.ask(SaslAuthenticateRequest(auth_bytes=sent), 2)
                assert (response.error_code == ErrorCode.NONE) is (name == "the control"), name


async def test_unknown_users_look_like_known_ones(tmp_path: Path) -> None:
    """CVE-2021-38153: what is told of a wrong password is told of an unknown user, in as many steps."""
    async with secured(tmp_path) as broker:
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            told = []
            for name in ("carol" if mechanism != "PLAIN" else "bob", "nobody"):
                wrong = Credentials(name, "wrong")
                login = plain.Client(wrong) if mechanism == "PLAIN" else Client(mechanism, wrong, bytes)
                async with wire(broker) as client:
                    response = await client.log_in(login)
                    told.append((response.error_code, response.error_message, bytes(response.auth_bytes)))
            assert told[0] == told[1]
            assert told[0][0] == ErrorCode.SASL_AUTHENTICATION_FAILED


# --- configs --------------------------------------------------------------------------------------

MARK: Final = "replayed-mark"
_marked: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _marked is not None and any(MARK in str(each) for each in arguments if isinstance(each, str | bytes)):
        _marked.append(event)


@contextlib.contextmanager
def audited() -> Iterator[list[str]]:
    """What the interpreter reports meanwhile (PEP 578) about anything with the mark in its name."""
    global _marked
    if _marked is None:
        sys.addaudithook(_hear)
    _marked = []
    yield _marked
    _marked = []


NAMED: Final = re.compile(r"class|url$|location|\.file$|path|jaas|cmd|providers|reporters|\.dirs?$|connect$")
"""The keys that name classes, files, programs or addresses."""

PLUGINS: Final = ("plugin.path", "config.providers.file.class", "remote.log.storage.manager.impl.plugin.class")
"""Keys that no row of a table has."""


def every_config(url: str, path: Path, names: re.Pattern[str]) -> Iterator[tuple[int, str, str]]:
    """Resource types, keys and values: each key of brokers, of a listener, of a mechanism, and of topics."""
    jaas = f'{MARK}.JndiLoginModule required user.provider.url="{url}";'
    values = itertools.cycle((f"{MARK}.Module", url, str(path), jaas))
    keys = [(BROKER, key) for key in (*BROKER_KEYS, *PLUGINS) if names.search(key)]
    for prefix in ("", "listener.name.clients.", "listener.name.clients.plain."):
        for resource_type, key in keys:
            yield from ((resource_type, prefix + key, next(values)) for _ in range(1 if prefix else 2))
    yield from ((TOPIC, key, next(values)) for key in (*TOPIC_KEYS, *PLUGINS) if names.search(key))


def altering(node_id: int, resource_type: int, key: str, value: str) -> AlterConfigsRequest:
    name = str(node_id) if resource_type == BROKER else "t"
    configs = [AlterableConfig(name=key, value=value)]
    resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    return AlterConfigsRequest(resources=[resource])


@pytest.mark.parametrize("names", [NAMED, pytest.param(re.compile(""), marks=pytest.mark.full)], ids=["named", "all"])
async def test_no_config_is_code_or_an_address(tmp_path: Path, names: re.Pattern[str]) -> None:
    """CVE-2023-25194, CVE-2025-27817, CVE-2025-27818: an administrator's AlterConfigs loads no class, opens no file and
    connects to nobody, whatever the key. (Those of a TLS listener's key stores are files: test_tls_reload.)"""
    connected: list[Any] = []
    server = await asyncio.start_server(lambda *streams: connected.append(streams), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{MARK}"
    async with server, secured(tmp_path) as broker, logged_in(broker, ALICE) as client:
        with audited() as marked:
            for resource_type, key, value in every_config(url, tmp_path / MARK, names):
                await client.ask(altering(broker.node_id, resource_type, key, value), 1)
            assert (marked, connected) == ([], [])
            with pytest.raises(FileNotFoundError):
                (tmp_path / MARK).read_bytes()
            assert marked == ["open"], "the hook hears"
        control = await client.ask(altering(broker.node_id, TOPIC, "retention.ms", "60000"), 1)
        assert control.responses[0].error_code == ErrorCode.NONE
        assert broker.configs.overrides("topics", "t")["retention.ms"] == "60000"


def test_login_modules_are_names() -> None:
    """CVE-2023-25194: a class in a JAAS line is compared with Kafka's, or passed over; never loaded."""
    line = f'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://127.0.0.1/{MARK}";'
    with audited() as marked:
        with pytest.raises(ConfigError, match="PLAIN needs org"):
            load(options={**SECURED, "listener.name.clients.plain.sasl.jaas.config": line})
        with pytest.raises(ClientError, match="SASL needs a user"):
            SecurityProperties({"security.protocol": "SASL_SSL", "sasl.jaas.config": line}).security()
    assert marked == []
    good = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    security = SecurityProperties({"security.protocol": "SASL_SSL", "sasl.jaas.config": good}).security()
    assert security.username == "a"


async def test_secrets_in_descriptions_of_configs(tmp_path: Path) -> None:
    """CVE-2019-12399: passwords are in no answer to DescribeConfigs, not even to an administrator's; nor in an error of
    AlterConfigs."""
    secrets = {"password.encoder.secret": "k-secret", "ssl.keystore.password": "s-secret"}
    async with running(tmp_path, **SECURED, **secrets) as broker, logged_in(broker, ALICE) as client:
        stored, jaas = (f"listener.name.clients.{name}" for name in ("ssl.key.password", "plain.sasl.jaas.config"))
        refused = await client.ask(altering(broker.node_id, BROKER, jaas, "a-new-secret"), 1)
        assert refused.responses[0].error_code == ErrorCode.INVALID_REQUEST
        altered = await client.ask(altering(broker.node_id, BROKER, stored, "a-new-secret"), 1)
        assert altered.responses[0].error_code == ErrorCode.NONE
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        described = await client.ask(request, 4)
        assert "-secret" not in f"{refused} {altered} {described} {broker.configs.overrides('brokers', '1')}"
        found = {each.name: each for each in described.results[0].configs}
        for key in (stored, "ssl.keystore.password"):
            assert (found[key].is_sensitive, found[key].value) == (True, None), key
        assert found["listeners"].value == SECURED["listeners"]


# --- buffers --------------------------------------------------------------------------------------


async def test_buffers_are_not_used_again(tmp_path: Path) -> None:
    """CVE-2026-35554: many requests at once, for two topics, from two clients and one that leaves. Requests wait, for
    their turn or for a thread that compresses their records, while others are received."""

    def sent(start: int) -> Sequence[tuple[str, bytes]]:
        numbers = range(start, start + 60)
        return [("opened" if each % 3 else "t", b"%06d" % each * (each % 7 * 700 + 1)) for each in numbers]

    async with secured(tmp_path, opened={"compression.type": "lz4"}) as broker, contextlib.AsyncExitStack() as stack:
        leaving, *staying = [await stack.enter_async_context(logged_in(broker, ALICE)) for _ in range(3)]
        all_sent = [sent(start) for start in (0, 1_000, 2_000)]
        for requests in zip(*all_sent, strict=True):
            for client, (topic, value) in zip((leaving, *staying), requests, strict=True):
                client.send(producing(batch(value), topic=topic), 9)
        leaving.writer.close()
        for client in staying:
            for _ in all_sent[0]:
                response = await client.receive(0, 9)
                assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        for name in ("t", "opened"):
            found = await values_of(staying[0], name)
            of_leaving, *of_staying = [[value for topic, value in each if topic == name] for each in all_sent]
            for expected in of_staying:
                assert [each for each in found if each[:3] == expected[0][:3]] == expected
            some = [each for each in found if each[:3] == of_leaving[0][:3]]
            assert some == of_leaving[: len(some)]


class Unread(asyncio.transports._FlowControlMixin):
    """A transport of asyncio 3.12.0 whose peer does not read: `writelines` does not pause the protocol."""

    def __init__(self, protocol: Any) -> None:
        super().__init__({"peername": ("10.0.0.1", 1)}, asyncio.get_running_loop())
        self._protocol = protocol
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, list_of_data: Any) -> None:
        self.unsent += sum(map(len, list_of_data))

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def read(self) -> None:
        """Have the peer read everything."""
        self.unsent = 0
        self._maybe_resume_protocol()


async def test_unread_responses_of_writelines() -> None:
    """CVE-2024-12254: a client that does not read its large responses is not served more of them."""
    peer = Peer(frame_bytes_max=MIB, budget_bytes=64 * MIB, receive_bytes=MIB)
    transport = Unread(peer.connection)
    peer.connection.encrypted(transport, None)
    for number in range(10):
        peer.send(b"now%d" % number + bytes(100_000))
    assert len(peer.dispatcher.served) == 1
    assert peer.connections.unsent_bytes == transport.unsent == 100_004
    for served in range(2, 4):  # the control: as it reads, it is served
        transport.read()
        await asyncio.sleep(0)
        assert len(peer.dispatcher.served) == served
