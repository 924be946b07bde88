"""The path and payload of every znode that the controller reads or writes, as Apache Kafka 3.9 in ZooKeeper mode has
them.

Payloads are JSON without whitespace; readers ignore unknown fields. An invalid payload raises `DamagedZnode`, which
names the path: metadata is never guessed.

*Source*: kafka 3.9.1 `core/src/main/scala/kafka/zk/ZkData.scala`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from barnabas.controller.coordination.interface import Create, Operation, SetData
from barnabas.controller.state import (
    NO_LEADER,
    NO_ZNODE,
    BrokerRegistration,
    EndPoint,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
    SecurityProtocol,
    SupportedFeature,
    TopicPartition,
)
from barnabas.controller.topics import check_topic_name
from barnabas.wire.errors import ApiError
from barnabas.wire.names import topic_id_from_text, topic_id_to_text

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONTROLLER_EPOCH_MAX = 2**31 - 1
TEXT_BYTES_MAX = 2**15 - 1
"""The longest string of Kafka's protocol."""
LEADER_EPOCH_MAX = 2**31 - 2**20
"""Elections raise the epoch beyond this only for a while; then no message can carry it. No cluster has had so many."""
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
DELETE_TOPICS = "/admin/delete_topics"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
REQUESTS = (PREFERRED_REPLICA_ELECTION, REASSIGN_PARTITIONS)
"""Znodes in which tools request something from the controller, which deletes them."""
CLUSTER_ID = "/cluster/id"
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

CONFIG_ENTITY_TYPES = ("topics", "clients", "users", "brokers", "ips")
DEFAULT_ENTITY = "<default>"
"""The name of the entity with an entity type's dynamic defaults."""

PERSISTENT_PATHS = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    "/brokers/seqid",
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    "/log_dir_event_notification",
    *(f"{CONFIG}/{entity_type}" for entity_type in CONFIG_ENTITY_TYPES),
)
"""Znodes that exist in every cluster from the first broker's start on (with their parents), `ZkData.PersistentZkPaths`.
"""


class DamagedZnode(Exception):
    """A znode's payload differs from Kafka's format."""

    def __init__(self, path: str, payload: bytes, detail: str) -> None:
        shown = payload[:200].decode("utf-8", "backslashreplace")
        super().__init__(f"znode {path} holds {shown!r}: {detail}")
        self.path = path


T = TypeVar("T")


def encode_object(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_object(path: str, payload: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    """Parse a JSON object and pass it to `read`; every error becomes `DamagedZnode`."""
    try:
        value = json.loads(payload)
        if not isinstance(value, dict):
            raise TypeError("not a JSON object")
        return read(value)
    except KeyError as error:
        raise DamagedZnode(path, payload, f"field {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedZnode(path, payload, str(error)) from error


def _integer(value: object) -> int:
    """A 32-bit integer: all numbers of the payloads are, as producer ids and times are written as strings."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise TypeError(f"{value!r} is not an integer of 32 bits")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(_integer(item) for item in value)


def text_of(value: object) -> str:
    """A string that messages can carry to brokers and clients; no client could have set another one."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    if len(value.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"a string of {len(value)} characters")
    return value


# -- /brokers/ids/N


def broker_path(broker_id: int) -> str:
    """The path of a broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_id_of(name: str) -> int | None:
    """The broker id in the name of a child of /brokers/ids; None if it is no broker id."""
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,9}", name) and int(name) < 2**31 else None


def encode_broker(broker: BrokerRegistration, now_ms: int) -> bytes:
    """A registration's payload, version 5. `host` and `port` are the first PLAINTEXT end point's, for clients that
    support no other (null and -1 if there is none).
    """
    plain = next((e for e in broker.endpoints if e.security_protocol is SecurityProtocol.PLAINTEXT), None)
    fields: dict[str, object] = {
        "version": 5,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "endpoints": [endpoint.connection_string for endpoint in broker.endpoints],
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "listener_security_protocol_map": {e.listener: e.security_protocol.name for e in broker.endpoints},
        "features": {
            feature.name: {"min_version": feature.min_version, "max_version": feature.max_version}
            for feature in broker.features
        },
    }
    if broker.rack is not None:
        fields["rack"] = broker.rack
    if broker.may_lack_records:
        fields["may_lack_records"] = True  # ours; Kafka reads the fields it knows
    if broker.damaged:
        fields["damaged"] = [[topic, partition] for topic, partition in sorted(broker.damaged)]  # ours, too
    if broker.min_insync_replicas != 1:
        fields["min_insync_replicas"] = broker.min_insync_replicas  # ours, too
    if broker.secret_digest:
        fields["secret_digest"] = broker.secret_digest  # ours, too
    return encode_object(fields)


def decode_broker(broker_id: int, payload: bytes, czxid: int) -> BrokerRegistration:
    """The broker in a registration of version 1 to 5; its epoch is the znode's czxid."""

    def read(fields: dict[str, Any]) -> BrokerRegistration:
        version = _integer(fields["version"])
        if version < 1:
            raise ValueError(f"unsupported version {version}")
        rack = fields.get("rack")
        return BrokerRegistration(
            broker_id=broker_id,
            endpoints=_endpoints(fields) if version > 1 else (_endpoint_of_version_1(fields),),
            rack=None if rack is None else text_of(rack),
            epoch=czxid,
            features=tuple(
                SupportedFeature(text_of(name), _integer(levels["min_version"]), _integer(levels["max_version"]))
                for name, levels in (fields.get("features") or {}).items()
            ),
            may_lack_records=fields.get("may_lack_records") is True,
            damaged=frozenset((text_of(topic), _integer(index)) for topic, index in fields.get("damaged") or ()),
            min_insync_replicas=_integer(fields.get("min_insync_replicas", 1)),
            secret_digest=text_of(fields.get("secret_digest", "")),
        )

    return decode_object(broker_path(broker_id), payload, read)


def _endpoint_of_version_1(fields: dict[str, Any]) -> EndPoint:
    return EndPoint("PLAINTEXT", text_of(fields["host"]), _port(_integer(fields["port"])), SecurityProtocol.PLAINTEXT)


def _port(number: int) -> int:
    if not -1 <= number < 2**16:
        raise ValueError(f"{number} is not a port")
    return number


def _endpoints(fields: dict[str, Any]) -> tuple[EndPoint, ...]:
    protocols = fields.get("listener_security_protocol_map")
    endpoints = []
    for text in fields["endpoints"]:
        listener, _, address = text_of(text).partition("://")
        host, _, port = address.rpartition(":")
        protocol = listener if protocols is None else protocols[listener]
        if protocol not in SecurityProtocol.__members__:
            raise ValueError(f"unknown security protocol {protocol!r}")
        endpoints.append(EndPoint(listener, host.strip("[]"), _port(int(port)), SecurityProtocol[protocol]))
    return tuple(endpoints)


# -- /controller and /controller_epoch


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    """The payload of the controller's znode, version 2."""
    return encode_object({"version": 2, "brokerid": broker_id, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


def decode_controller(payload: bytes) -> int:
    """The controller's broker id."""
    return decode_object(CONTROLLER, payload, lambda fields: _integer(fields["brokerid"]))


def encode_controller_epoch(epoch: int) -> bytes:
    """The epoch in decimal digits, without JSON."""
    return str(epoch).encode()


def decode_controller_epoch(payload: bytes) -> int:
    """The epoch; the znode's version fences writes."""
    try:
        epoch = int(payload)
    except ValueError as error:
        raise DamagedZnode(CONTROLLER_EPOCH, payload, str(error)) from error
    if not 0 <= epoch <= CONTROLLER_EPOCH_MAX:
        raise DamagedZnode(CONTROLLER_EPOCH, payload, "not an epoch of a controller")
    return epoch


# -- /brokers/topics/T and below


class TopicAssignment(NamedTuple):
    """The payload of /brokers/topics/T. `topic_id` is None if a Kafka older than 2.8 wrote it."""

    topic_id: bytes | None
    partitions: Mapping[int, ReplicaAssignment]


def topic_path(topic: str) -> str:
    """The path of a topic's id and assignment."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """The parent of a topic's partitions; without data."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """The parent of one partition's state; without data."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """The path of a partition's leader and ISR."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


_STATE_PATH = re.compile(f"{TOPICS}/[^/]+/partitions/[0-9]+/state")
_REGISTRATIONS_ZXID = re.compile(rb'"registrations_zxid":([0-9]{1,19})\b')


def encode_topic(topic_id: bytes | None, partitions: Mapping[int, ReplicaAssignment]) -> bytes:
    """A topic's payload, version 3; replicas being added or removed are listed only for partitions that have any."""
    fields: dict[str, object] = {
        "version": 3,
        "partitions": {str(p): list(a.replicas) for p, a in sorted(partitions.items())},
        "adding_replicas": {
            str(p): list(a.adding_replicas) for p, a in sorted(partitions.items()) if a.adding_replicas
        },
        "removing_replicas": {
            str(p): list(a.removing_replicas) for p, a in sorted(partitions.items()) if a.removing_replicas
        },
    }
    if topic_id is not None:
        fields["topic_id"] = topic_id_to_text(topic_id)
    return encode_object(fields)


def decode_topic(topic: str, payload: bytes) -> TopicAssignment:
    """The assignment in a topic's payload of version 1 to 3. Partitions are numbered from 0 without gaps; each has at
    least one replica, on different brokers, and keeps one in a reassignment. A znode whose name is no valid topic name
    is damaged, too: each broker would use the name for a directory.
    """

    def read(fields: dict[str, Any]) -> TopicAssignment:
        adding = fields.get("adding_replicas") or {}
        removing = fields.get("removing_replicas") or {}
        partitions = {
            int(key): ReplicaAssignment(
                _integers(replicas), _integers(adding.get(key, [])), _integers(removing.get(key, []))
            )
            for key, replicas in (fields.get("partitions") or {}).items()
        }
        if not partitions or sorted(partitions) != list(range(len(partitions))):
            raise ValueError("partitions are not numbered 0, 1, 2, ...")
        for index, assignment in partitions.items():
            _check_replicas(index, assignment)
        text = fields.get("topic_id")
        return TopicAssignment(
            None if text is None else topic_id_from_text(text_of(text)), dict(sorted(partitions.items()))
        )

    try:
        check_topic_name(topic)
    except ApiError as error:
        raise DamagedZnode(topic_path(topic), payload, error.message) from error
    return decode_object(topic_path(topic), payload, read)


def _check_replicas(index: int, assignment: ReplicaAssignment) -> None:
    """Raises: ValueError for an invalid assignment of a partition."""
    replicas = assignment.replicas
    if not replicas or min(replicas) < 0 or len(set(replicas)) != len(replicas):
        raise ValueError(f"partition {index} cannot have the replicas {list(replicas)}")
    if not assignment.target_replicas or not assignment.origin_replicas:
        raise ValueError(f"partition {index} cannot be reassigned from or to no replicas")


@lru_cache(maxsize=64)  # thousands of new partitions have the same state
def encode_partition_state(state: PartitionState) -> bytes:
    """The payload of a partition's state, version 1, without the partition epoch, which is the znode's version."""
    fields: dict[str, object] = {
        "version": 1,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "controller_epoch": state.controller_epoch,
        "isr": list(state.isr),
    }
    if state.recovery_state is not RecoveryState.RECOVERED:
        fields["leader_recovery_state"] = state.recovery_state.value
    if state.left_isr:
        fields["left_isr"] = list(state.left_isr)  # ours: Kafka ignores it
    return encode_object(fields)


def decode_partition_state(topic: str, partition: int, payload: bytes, version: int) -> PartitionState:
    """The state in a payload of version 1; `version` is the znode's, which is the partition epoch. A leader that is not
    in the ISR counts as none: without the other members the ISR would be empty.
    """

    def read(fields: dict[str, Any]) -> PartitionState:
        leader, isr = _integer(fields["leader"]), tuple(dict.fromkeys(_integers(fields["isr"])))
        leader_epoch = _integer(fields["leader_epoch"])
        if not isr or not 0 <= leader_epoch <= LEADER_EPOCH_MAX:
            raise ValueError("no replica is in sync" if not isr else "not an epoch of a leader")
        return PartitionState(
            leader=leader if leader in isr else NO_LEADER,
            leader_epoch=leader_epoch,
            isr=isr,
            controller_epoch=_integer(fields["controller_epoch"]),
            partition_epoch=version,
            recovery_state=RecoveryState(fields.get("leader_recovery_state", RecoveryState.RECOVERED.value)),
            left_isr=_integers(fields.get("left_isr", [])),
        )

    return decode_object(partition_state_path(topic, partition), payload, read)


def marked(operation: Operation, registrations_zxid: int) -> Operation:
    """A write of the controller, with the zxid up to which it knew the registrations if it writes a partition's state.
    The field is ours; Kafka ignores it.
    """
    if isinstance(operation, Create | SetData) and _STATE_PATH.fullmatch(operation.path):
        return operation._replace(data=operation.data[:-1] + b',"registrations_zxid":%d}' % registrations_zxid)
    return operation


def decided_zxid(payload: bytes, mzxid: int) -> int:
    """The zxid that a broker's registration has to exceed if the state of a partition, written at `mzxid`, was decided
    without knowing it. A state written by Kafka counts as decided when it was written.
    """
    found = _REGISTRATIONS_ZXID.search(payload)
    return mzxid if found is None else min(mzxid, int(found[1]))


def lost_partition_state(version: int = NO_ZNODE) -> PartitionState:
    """The state of a partition whose znode is damaged, or gone: without a leader, and with unknown in-sync replicas.

    Its leader epoch is the damaged znode's `version`, at least: each write of the znode raises the leader epoch by at
    most one, so no greater one was ever used.
    """
    return PartitionState(
        leader=NO_LEADER, leader_epoch=max(version, 0), isr=(), controller_epoch=0, partition_epoch=version
    )


# -- /config


def config_path(entity_type: str, name: str) -> str:
    """The path of an entity's overrides."""
    return f"{CONFIG}/{entity_type}/{name}"


def encode_config(configs: Mapping[str, str]) -> bytes:
    """The payload of an entity's overrides, version 1."""
    return encode_object({"version": 1, "config": dict(configs)})


def decode_config(entity_type: str, name: str, payload: bytes) -> dict[str, str]:
    """An empty payload, or one without `config`, is an entity without overrides, as for Kafka."""
    if not payload:
        return {}

    def read(fields: dict[str, Any]) -> dict[str, str]:
        return {text_of(key): text_of(value) for key, value in (fields.get("config") or {}).items()}

    return decode_object(config_path(entity_type, name), payload, read)


def encode_config_change(entity_type: str, name: str) -> bytes:
    """The payload of a notification that an entity's overrides have changed, version 2."""
    return encode_object({"version": 2, "entity_path": f"{entity_type}/{name}"})


def decode_config_change(path: str, payload: bytes) -> tuple[str, str]:
    """Entity type and name, of version 2 and of version 1 (which has them as two fields)."""

    def read(fields: dict[str, Any]) -> tuple[str, str]:
        version = _integer(fields["version"])
        if version == 1:
            return text_of(fields["entity_type"]), text_of(fields["entity_name"])
        if version != 2:
            raise ValueError(f"unsupported version {version}")
        entity_type, separator, name = text_of(fields["entity_path"]).partition("/")
        if not separator:
            raise ValueError("entity_path has no name")
        return entity_type, name

    return decode_object(path, payload, read)


# -- /admin


def delete_topic_path(topic: str) -> str:
    """A topic's entry in the deletion queue; without data."""
    return f"{DELETE_TOPICS}/{topic}"


def decode_preferred_replica_election(payload: bytes) -> list[TopicPartition]:
    """The partitions in a request for preferred leaders, of version 1."""

    def read(fields: dict[str, Any]) -> list[TopicPartition]:
        return [(text_of(each["topic"]), _integer(each["partition"])) for each in fields["partitions"]]

    return decode_object(PREFERRED_REPLICA_ELECTION, payload, read)


def encode_reassign_partitions(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """The payload of a request to reassign partitions to these replicas, version 1."""
    partitions = [
        {"topic": name, "partition": index, "replicas": list(replicas)} for (name, index), replicas in targets.items()
    ]
    return encode_object({"version": 1, "partitions": partitions})


def decode_reassign_partitions(payload: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """The target replicas in a request for reassignments, of version 1."""

    def read(fields: dict[str, Any]) -> dict[TopicPartition, tuple[int, ...]]:
        return {
            (text_of(each["topic"]), _integer(each["partition"])): _integers(each["replicas"])
            for each in fields["partitions"]
        }

    return decode_object(REASSIGN_PARTITIONS, payload, read)


# -- /cluster/id, /feature, /latest_producer_id_block


def encode_cluster_id(cluster_id: str) -> bytes:
    """The payload with the cluster's id, version 1, which only here is a string."""
    return encode_object({"version": "1", "id": cluster_id})


def decode_cluster_id(payload: bytes) -> str:
    """The cluster id."""
    return decode_object(CLUSTER_ID, payload, lambda fields: text_of(fields["id"]))


def encode_feature() -> bytes:
    """The payload of the znode for features, version 2: feature versioning enabled, no feature finalised."""
    return encode_object({"version": 2, "status": 1, "features": {}})


class ProducerIdBlock(NamedTuple):
    """Producer ids `first` to `last`, both included, allocated to one broker."""

    broker_id: int
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """The payload with the last allocated block of producer ids, version 1; the ids are strings."""
    return encode_object(
        {"version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last)}
    )


def decode_producer_id_block(payload: bytes) -> ProducerIdBlock:
    """The last allocated block."""

    def read(fields: dict[str, Any]) -> ProducerIdBlock:
        first, last = int(text_of(fields["block_start"])), int(text_of(fields["block_end"]))
        if not 0 <= first <= last < 2**63:
            raise ValueError("not a block of producer ids")
        return ProducerIdBlock(_integer(fields["broker"]), first, last)

    return decode_object(PRODUCER_ID_BLOCK, payload, read)


def with_ancestors(paths: Iterable[str]) -> list[str]:
    """The paths and all their ancestors except the root, parents first, each once."""
    ordered: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        for length in range(2, len(parts) + 1):
            ordered["/".join(parts[:length])] = None
    return list(ordered)
