"""Payloads of znodes: the bytes of Kafka 3.9 read, ours equal to them as JSON, damage reported."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import Check, Create, SetData
from barnabas.controller.state import (
    NO_LEADER,
    BrokerRegistration,
    EndPoint,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
    SecurityProtocol,
    SupportedFeature,
)

TOPIC_ID = bytes.fromhex("0123456789ab4def8123456789abcdef")
TOPIC_ID_TEXT = "ASNFZ4mrTe-BI0VniavN7w"

# What Kafka 3.9.1 in ZooKeeper mode writes (ZkData.scala); the order of fields means nothing.
BROKER = (
    '{"features":{"transaction.version":{"min_version":0,"max_version":2}},'
    '"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","INTERNAL":"SASL_SSL"},'
    '"endpoints":["PLAINTEXT://host1:9092","INTERNAL://[::1]:9093"],"jmx_port":-1,"port":9092,"host":"host1","version":5,'
    '"timestamp":"1700000000000","rack":"dc1"}'
)
CONTROLLER = '{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}'
TOPIC = (
    '{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"' + TOPIC_ID_TEXT + '",'
    '"adding_replicas":{},"version":3}'
)
REASSIGNED_TOPIC = (
    '{"removing_replicas":{"0":[1]},"partitions":{"0":[3,2,1]},"topic_id":"' + TOPIC_ID_TEXT + '",'
    '"adding_replicas":{"0":[3]},"version":3}'
)
STATE = '{"controller_epoch":4,"leader":1,"version":1,"leader_epoch":7,"isr":[1,2]}'
RECOVERING_STATE = '{"controller_epoch":4,"leader":1,"version":1,"leader_epoch":7,"isr":[1],"leader_recovery_state":1}'
CONFIG = '{"version":1,"config":{"retention.ms":"1000","cleanup.policy":"delete"}}'
CONFIG_CHANGE = '{"version":2,"entity_path":"topics/flights"}'
CLUSTER_ID = '{"version":"1","id":"4BBVMnpWRYSSAAhuMDMC8g"}'
PRODUCER_IDS = '{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'
ELECTIONS = '{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":3}]}'
REASSIGNMENTS = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}'
FEATURE = '{"version":2,"status":1,"features":{}}'

REGISTRATION = BrokerRegistration(
    broker_id=1,
    endpoints=(
        EndPoint("PLAINTEXT", "host1", 9092),
        EndPoint("INTERNAL", "::1", 9093, SecurityProtocol.SASL_SSL),
    ),
    rack="dc1",
    epoch=42,
    features=(SupportedFeature("transaction.version", 0, 2),),
)
ASSIGNMENTS = {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 1))}
REASSIGNED = {0: ReplicaAssignment((3, 2, 1), (3,), (1,))}
PARTITION = PartitionState(leader=1, leader_epoch=7, isr=(1, 2), controller_epoch=4, partition_epoch=9)
RECOVERING = PARTITION._replace(isr=(1,), recovery_state=RecoveryState.RECOVERING)
BLOCK = znodes.ProducerIdBlock(1, 1000, 1999)

WRITTEN = [
    (znodes.encode_broker(REGISTRATION, 1_700_000_000_000), BROKER),
    (znodes.encode_controller(1, 1_700_000_000_000), CONTROLLER),
    (znodes.encode_topic(TOPIC_ID, ASSIGNMENTS), TOPIC),
    (znodes.encode_topic(TOPIC_ID, REASSIGNED), REASSIGNED_TOPIC),
    (znodes.encode_partition_state(PARTITION), STATE),
    (znodes.encode_partition_state(RECOVERING), RECOVERING_STATE),
    (znodes.encode_config({"retention.ms": "1000", "cleanup.policy": "delete"}), CONFIG),
    (znodes.encode_config_change("topics", "flights"), CONFIG_CHANGE),
    (znodes.encode_cluster_id("4BBVMnpWRYSSAAhuMDMC8g"), CLUSTER_ID),
    (znodes.encode_producer_id_block(BLOCK), PRODUCER_IDS),
    (znodes.encode_feature(), FEATURE),
    (znodes.encode_reassign_partitions({("t", 0): (3, 2)}), REASSIGNMENTS),
]


def test_the_last_to_leave_is_in_a_field_that_kafka_ignores() -> None:
    shrunk = PARTITION.with_isr((1,))
    payload = znodes.encode_partition_state(shrunk)
    assert json.loads(payload) == json.loads(STATE) | {"isr": [1], "left_isr": [2]}
    assert znodes.decode_partition_state("t", 0, payload, 9) == shrunk


def test_min_insync_replicas_is_in_a_field_that_kafka_ignores() -> None:
    broker = REGISTRATION._replace(min_insync_replicas=2)
    payload = znodes.encode_broker(broker, 1_700_000_000_000)
    assert json.loads(payload) == json.loads(BROKER) | {"min_insync_replicas": 2}
    assert znodes.decode_broker(1, payload, 42) == broker


def test_the_digest_of_a_secret_is_in_a_field_kafka_ignores() -> None:
    broker = REGISTRATION._replace(secret_digest="0123abcd")
    payload = znodes.encode_broker(broker, 1_700_000_000_000)
    assert json.loads(payload) == json.loads(BROKER) | {"secret_digest": "0123abcd"}
    assert znodes.decode_broker(1, payload, 42) == broker


@pytest.mark.parametrize(("ours", "kafkas"), WRITTEN)
def test_written_as_kafka_writes(ours: bytes, kafkas: str) -> None:
    assert json.loads(ours) == json.loads(kafkas)
    assert b" " not in ours


READ: list[tuple[Callable[[bytes], Any], str, Any]] = [
    (lambda payload: znodes.decode_broker(1, payload, 42), BROKER, REGISTRATION),
    (znodes.decode_controller, CONTROLLER, 1),
    (lambda payload: znodes.decode_topic("t", payload), TOPIC, znodes.TopicAssignment(TOPIC_ID, ASSIGNMENTS)),
    (lambda payload: znodes.decode_topic("t", payload), REASSIGNED_TOPIC, znodes.TopicAssignment(TOPIC_ID, REASSIGNED)),
    (lambda payload: znodes.decode_partition_state("t", 0, payload, 9), STATE, PARTITION),
    (lambda payload: znodes.decode_partition_state("t", 0, payload, 9), RECOVERING_STATE, RECOVERING),
    (
        lambda payload: znodes.decode_config("topics", "t", payload),
        CONFIG,
        {"retention.ms": "1000", "cleanup.policy": "delete"},
    ),
    (lambda payload: znodes.decode_config_change("/config/changes/x", payload), CONFIG_CHANGE, ("topics", "flights")),
    (znodes.decode_cluster_id, CLUSTER_ID, "4BBVMnpWRYSSAAhuMDMC8g"),
    (znodes.decode_producer_id_block, PRODUCER_IDS, BLOCK),
    (znodes.decode_preferred_replica_election, ELECTIONS, [("t", 0), ("u", 3)]),
    (znodes.decode_reassign_partitions, REASSIGNMENTS, {("t", 0): (3, 2)}),
]


@pytest.mark.parametrize(("read", "payload", "expected"), READ)
def test_kafkas_payloads_are_read(read: Callable[[bytes], Any], payload: str, expected: Any) -> None:
    assert read(payload.encode()) == expected


@pytest.mark.parametrize(("read", "payload", "expected"), READ)
def test_unknown_fields_are_ignored(read: Callable[[bytes], Any], payload: str, expected: Any) -> None:
    fields = {**json.loads(payload), "a_later_version": {"has": ["this"]}}
    assert read(json.dumps(fields).encode()) == expected


@pytest.mark.parametrize(("read", "payload", "expected"), READ)
@pytest.mark.parametrize("damage", ["[]", "null", "7", '"text"', "{", "\x00", "[" * 100_000])
def test_damage_names_the_znode(read: Callable[[bytes], Any], payload: str, expected: Any, damage: str) -> None:
    del payload, expected
    with pytest.raises(znodes.DamagedZnode, match=r"^znode /"):
        read(damage.encode())


@pytest.mark.parametrize(
    ("read", "payload"),
    [(read, payload) for read, payload, _ in READ if read not in (READ[6][0],)],
)
def test_missing_and_mistyped_fields_are_damage(read: Callable[[bytes], Any], payload: str) -> None:
    whole = json.loads(payload)
    optional = {
        "timestamp",
        "features",
        "rack",
        "jmx_port",
        "host",
        "port",
        "version",
        "listener_security_protocol_map",
    }
    optional |= {"kraftControllerEpoch", "adding_replicas", "removing_replicas", "topic_id", "leader_recovery_state"}
    for name in set(whole) - optional:
        with pytest.raises(znodes.DamagedZnode):
            read(json.dumps({key: value for key, value in whole.items() if key != name}).encode())
        with pytest.raises(znodes.DamagedZnode):
            read(json.dumps({**whole, name: {"not": 1.5}}).encode())


FIELDS = st.sampled_from(["version", "partitions", "topic_id", "isr", "leader", "config", "endpoints", "0"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
    max_leaves=8,
)


@given(payload=JSON)
def test_any_json_is_read_or_damage(payload: Any) -> None:
    for read, _, _ in READ:
        try:
            read(json.dumps(payload).encode())
        except znodes.DamagedZnode:
            continue


@pytest.mark.parametrize(
    "fields",
    [
        {"rack": "r" * 32_768},
        {"rack": "\ud800"},
        {"endpoints": ["PLAINTEXT://" + "h" * 32_768 + ":9092"]},
        {"endpoints": ["PLAINTEXT://h:99999999999"]},
        {"endpoints": ["PLAINTEXT://h:-2"]},
        {"version": 1, "host": "h", "port": 2**31 - 1},
        {"features": {"f" * 32_768: {"min_version": 0, "max_version": 1}}},
    ],
)
def test_a_registration_that_no_message_can_carry_is_damaged(fields: dict[str, Any]) -> None:
    """Otherwise no request could be sent to any broker, and no client would learn of the others."""
    registration = {**json.loads(znodes.encode_broker(REGISTRATION, 0)), **fields}
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_broker(1, json.dumps(registration).encode(), 42)


@pytest.mark.parametrize("config", [{"k" * 32_768: "v"}, {"k": "v" * 32_768}, {"\udfff": "v"}, {"k": "\udfff"}])
def test_settings_that_no_message_can_carry_are_damaged(config: dict[str, str]) -> None:
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_config("topics", "t", json.dumps({"version": 1, "config": config}).encode())


def test_registrations_whose_name_is_no_id() -> None:
    """A broker at the path of 007 is not registered at the path of 7."""
    assert [znodes.broker_id_of(name) for name in ("0", "7", "2147483647")] == [0, 7, 2147483647]
    for name in ("", "007", "00", "-1", "+1", "1_0", "2147483648", "9" * 5_000, "x", "7\n", "\N{DEVANAGARI DIGIT TWO}"):
        assert znodes.broker_id_of(name) is None, name


def test_old_brokers() -> None:
    version_1 = '{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    version_2 = (
        '{"version":2,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666",'
        '"endpoints":["PLAINTEXT://host1:9092", "SSL://host1:9093"]}'
    )
    assert znodes.decode_broker(3, version_1.encode(), 5).endpoints == (EndPoint("PLAINTEXT", "localhost", 9092),)
    assert znodes.decode_broker(3, version_2.encode(), 5).endpoints == (
        EndPoint("PLAINTEXT", "host1", 9092),
        EndPoint("SSL", "host1", 9093, SecurityProtocol.SSL),
    )


def test_a_broker_that_may_lack_records() -> None:
    damaged = frozenset({("t", 0), ("t", 1), ("u", 0)})
    for broker in (REGISTRATION._replace(damaged=damaged), REGISTRATION._replace(may_lack_records=True)):
        assert znodes.decode_broker(1, znodes.encode_broker(broker, 0), 42) == broker


def test_a_broker_without_a_plaintext_end_point() -> None:
    secured = REGISTRATION._replace(endpoints=REGISTRATION.endpoints[1:], rack=None)
    fields = json.loads(znodes.encode_broker(secured, 0))
    assert (fields["host"], fields["port"]) == (None, -1)
    assert "rack" not in fields


def test_old_topics_and_changes() -> None:
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{"0":[1]}}') == znodes.TopicAssignment(
        None, {0: ReplicaAssignment((1,))}
    )
    version_1 = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert znodes.decode_config_change("/config/changes/x", version_1) == ("topics", "t")
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_config_change("/config/changes/x", b'{"version":3,"entity_path":"topics/t"}')
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_config_change("/config/changes/x", b'{"version":2,"entity_path":"topics"}')


def test_a_topic_with_a_gap_is_damaged() -> None:
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_topic("t", b'{"version":3,"partitions":{"0":[1],"2":[1]}}')
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_topic("t", b'{"version":3,"partitions":{}}')


@pytest.mark.parametrize("replicas", ["[]", "[1,1]", "[-1]", "[1,-7]"])
def test_a_topic_with_an_impossible_partition_is_damaged(replicas: str) -> None:
    with pytest.raises(znodes.DamagedZnode, match="partition 1 cannot have the replicas"):
        znodes.decode_topic("t", f'{{"version":3,"partitions":{{"0":[1],"1":{replicas}}}}}'.encode())


@pytest.mark.parametrize("moves", ['"removing_replicas":{"1":[1,2]}', '"adding_replicas":{"1":[2,1]}'])
def test_a_topic_with_an_empty_reassignment_is_damaged(moves: str) -> None:
    """A reassignment from or to no replicas would be done at once and leave an empty ISR, which no controller can
    load."""
    with pytest.raises(znodes.DamagedZnode, match="partition 1 cannot be reassigned"):
        znodes.decode_topic("t", f'{{"version":3,"partitions":{{"0":[1],"1":[1,2]}},{moves}}}'.encode())


def state_with(**fields: Any) -> bytes:
    return json.dumps({**json.loads(STATE), **fields}).encode()


def test_a_leader_that_is_not_in_sync_is_none() -> None:
    for leader, isr in ((3, [1, 2]), (7, [2])):
        read = znodes.decode_partition_state("t", 0, state_with(leader=leader, isr=isr), 9)
        assert (read.leader, read.isr) == (NO_LEADER, tuple(isr))
    assert znodes.decode_partition_state("t", 0, state_with(leader=2, isr=[2, 1, 2]), 9).isr == (2, 1)


@pytest.mark.parametrize("fields", [{"isr": []}, {"leader_epoch": 2**31 - 1}, {"leader_epoch": -1}])
def test_a_state_from_which_no_leader_can_follow_is_damaged(fields: dict[str, Any]) -> None:
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_partition_state("t", 0, state_with(**fields), 9)


@pytest.mark.parametrize(
    "name", ["", "a b", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "t/u", "..", "x" * 250, "x" * 255]
)
def test_a_topic_that_is_named_as_none_can_be_is_damaged(name: str) -> None:
    with pytest.raises(znodes.DamagedZnode, match="topic"):
        znodes.decode_topic(name, b'{"version":3,"partitions":{"0":[1]}}')


def test_no_overrides() -> None:
    assert znodes.decode_config("topics", "t", b"") == {}
    assert znodes.decode_config("topics", "t", b'{"version":1}') == {}


def test_controller_epoch() -> None:
    assert znodes.encode_controller_epoch(12) == b"12"
    assert znodes.decode_controller_epoch(b"12") == 12
    with pytest.raises(znodes.DamagedZnode):
        znodes.decode_controller_epoch(b"")


def test_paths() -> None:
    assert znodes.broker_path(3) == "/brokers/ids/3"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.partition_state_path("t", 4) == "/brokers/topics/t/partitions/4/state"
    assert znodes.config_path("brokers", "<default>") == "/config/brokers/<default>"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert znodes.with_ancestors(["/a/b/c", "/a/d"]) == ["/a", "/a/b", "/a/b/c", "/a/d"]


def test_a_state_says_up_to_where_registrations_were_known() -> None:
    """Kafka's states do not; and a topic may be called `state`."""
    write = SetData(znodes.partition_state_path("t", 4), znodes.encode_partition_state(PARTITION), 7)
    marked = znodes.marked(write, 42)
    assert isinstance(marked, SetData)
    assert (marked.path, marked.version) == (write.path, 7)
    assert znodes.decode_partition_state("t", 4, marked.data, PARTITION.partition_epoch) == PARTITION
    assert [znodes.decided_zxid(marked.data, mzxid) for mzxid in (41, 43)] == [41, 42]
    assert znodes.decided_zxid(write.data, 43) == 43
    for other in (
        SetData(znodes.topic_path("state"), b"{}"),
        Create(znodes.config_path("topics", "state"), b"{}"),
        Create(znodes.partition_path("t", 4)),
        Check(znodes.partition_state_path("t", 4), 1),
    ):
        assert znodes.marked(other, 42) is other
