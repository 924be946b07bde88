"""A broker that fails on demand, as clients see it: each verb, its targets, its count, and its after-effects."""

import asyncio
import gc
import select
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.clock import ManualClock
from barnabas.testing import ApiError, Broker, Cluster, ErrorCode, Fault, Request
from barnabas.testing.faults.effects import Delay, Throttle
from barnabas.testing.waiting.conditions import brokers_of
from barnabas.wire.codec import decode
from barnabas.wire.messages import api as api_of
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tests.support.parameters import SEEDED, chance
from tools.attack.hostile import connect, frame, receive
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # reads its schemas by a function that Python deprecates
    from kafka import KafkaConsumer

RECORD = Record(0, 1_700_000_000_000, None, b"x", [], 0)
CORRELATION_ID_BYTES = 4


def ask(connection: socket.socket, request: Message, version: int, client_id: str = "test") -> Any:
    """The answer, of a version that is not flexible; None when the connection is closed instead."""
    connection.sendall(frame(request, version, client_id=client_id))
    answer = receive(connection)
    if answer is None:
        return None
    key: int = request.API_KEY
    return decode(api_of(key).response_class, version, answer, CORRELATION_ID_BYTES)


def produce(*partitions: int, acks: int = 1, topic: str = "t") -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=build_batch([RECORD])) for index in partitions]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def codes(response: Any) -> dict[int, int]:
    [topic] = response.responses
    return {partition.index: partition.error_code for partition in topic.partition_responses}


LIST_GROUPS = ListGroupsRequest()


def error(connection: socket.socket, client_id: str = "test") -> int:
    """The error code that a request is answered with which nothing is wrong with."""
    code: int = ask(connection, LIST_GROUPS, 1, client_id).error_code
    return code


# --- who, and how often ---------------------------------------------------------------------------


def test_limits(broker: Broker) -> None:
    broker.faults.fail("ListGroups", 14, after=1, every=2, times=2)
    with connect(broker.bootstrap_servers) as connection:
        assert [error(connection) for _ in range(8)] == [0, 0, 14, 0, 14, 0, 0, 0]


def test_chances_are_those_of_the_seed(broker: Broker) -> None:
    def seen(seed: int | None) -> list[int]:
        with broker.faults.fail("ListGroups", 14, probability=0.5, seed=seed), connect(address) as connection:
            return [error(connection) for _ in range(32)]

    address = broker.bootstrap_servers
    first = seen(7)
    assert seen(7) == first
    assert seen(8) != first
    assert {0, 14} == set(first)
    with broker.faults.fail("ListGroups", 14, probability=0.5) as fault:
        assert ", seed=" in repr(fault)


def test_a_fault_that_has_ended_has_no_block(broker: Broker) -> None:
    broker.create_topic("t")
    for fault in (
        broker.faults.fail("Produce", 6),
        broker.faults.leader_away("t"),
        broker.faults.hang_transaction("t"),
    ):
        with fault:
            pass
        with pytest.raises(RuntimeError, match=r"^<.*> has ended: make another fault"), fault:
            pass


def test_a_fault_says_what_it_is_for(broker: Broker) -> None:
    """So that a misspelt name is found: who asks for something else is counted, too."""
    broker.create_topic("t")
    faults = broker.faults
    misspelt = faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="typo", partition=[1, 0], times=2, after=1)
    away = faults.leader_away("typo")
    others = [
        faults.fail("Produce", 6, client_id=None, version=3, broker=7, every=2, predicate=str.isalpha),
        faults.drop(group={f"g{number}" for number in range(7)}, from_brokers=True),
        faults.refuse(times=3, broker=7),
        faults.pause(broker=7),
        faults.disk_slow(1),
    ]
    met = faults.delay("Produce", 0, topic="t", times=1)
    with connect(broker.bootstrap_servers) as connection:
        for _ in range(3):
            ask(connection, produce(0), 8)
    what = "fail Produce NOT_LEADER_OR_FOLLOWER (topic='typo', partition={0, 1}, times=2, after=1)"
    assert repr(misspelt) == f"<{what}, 0 hits of 3 requests>"
    assert repr(away) == "<leader_away typo, 0 hits of 3 requests>"
    assert repr(met) == "<delay Produce (topic='t', times=1), 1 hits>"
    assert [repr(each) for each in others] == [
        "<fail Produce NOT_LEADER_OR_FOLLOWER (version=3, client_id=None, broker=7, predicate=isalpha, every=2), "
        "0 hits of 3 requests>",
        "<drop everything (group={'g0', 'g1', 'g2', 'g3', 'g4', ...}, from_brokers=True), 0 hits of 3 requests>",
        "<refuse (broker=7, times=3), 0 hits>",
        "<pause (broker=7), 0 hits>",
        "<disk_slow, 3 hits>",
    ]
    with pytest.raises(TimeoutError, match=r"topic='typo'.* 0 hits of 3 requests>: not 1 hits"):
        misspelt.wait_hits(timeout=0.01)


def test_a_faults_keywords_select_its_requests(broker: Broker) -> None:
    broker.faults.fail("ListGroups", 14, client_id="a")
    broker.faults.fail(None, 15, client_id={"b", "c"}, predicate=lambda request: request.version == 1)
    broker.faults.fail("ListGroups", 16, client_id="d", version=2)
    broker.faults.fail("ListGroups", 27, client_id="e", principal="User:somebody")
    broker.faults.fail("ListGroups", 27, client_id="e", broker=7)
    with connect(broker.bootstrap_servers) as connection:
        assert [error(connection, client_id) for client_id in "abcde"] == [14, 15, 15, 0, 0]


def test_versions_and_principals_are_meant(broker: Broker) -> None:
    """One, or one of several, and no others."""
    broker.faults.fail("ListGroups", 14, version=2)
    broker.faults.fail("ListGroups", 15, version={0, 1}, principal=["User:ANONYMOUS", "User:somebody"])
    broker.faults.fail("Heartbeat", 30, principal="User:ANONYMOUS")
    broker.faults.fail("DescribeGroups", 30, principal="User:somebody")
    with connect(broker.bootstrap_servers) as connection, broker.recorded() as seen:
        assert [ask(connection, LIST_GROUPS, version).error_code for version in (0, 1, 2)] == [15, 15, 14]
        assert ask(connection, HeartbeatRequest(group_id="g"), 0).error_code == 30
        assert ask(connection, DescribeGroupsRequest(groups=["g"]), 0).groups[0].error_code != 30
    assert [each.request.version for each in seen.requests("ListGroups", version=1)] == [1]
    assert len(seen.requests(principal="User:ANONYMOUS")) == 5
    assert seen.requests(principal="User:somebody") == []


def test_a_transactional_id_is_meant(broker: Broker) -> None:
    broker.faults.fail("InitProducerId", 51, transactional_id="x")

    def init(transactional_id: str | None) -> int:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        code: int = ask(connection, request, 1).error_code
        return code

    with connect(broker.bootstrap_servers) as connection, broker.recorded() as seen:
        assert ask(connection, FindCoordinatorRequest(key_type=1, key="x"), 2).error_code == 0
        assert (init("x"), init(None)) == (51, 0)
        assert init("y") != 51
    assert len(seen.requests("InitProducerId", transactional_id={"x", "z"})) == 1
    assert len(seen.requests("InitProducerId", transactional_id="y")) == 1


@pytest.mark.parametrize(("whole", "codes"), [(None, (15, [])), (True, (15, [])), (False, (0, [15]))])
def test_the_whole_answer_fails_or_its_entries(
    broker: Broker, whole: bool | None, codes: tuple[int, list[int]]
) -> None:
    broker.faults.fail("OffsetFetch", 15, whole=whole)
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    with connect(broker.bootstrap_servers) as connection:
        answer = ask(connection, OffsetFetchRequest(group_id="g", topics=topics), 5)
    entries = [each.error_code for topic in answer.topics for each in topic.partitions]
    assert (answer.error_code, [code for code in entries if code]) == codes


@pytest.mark.parametrize(("whole", "codes"), [(None, (0, [6])), (True, (6, [])), (False, (0, [6]))])
def test_a_whole_fetch_fails_where_that_is_said(
    broker: Broker, whole: bool | None, codes: tuple[int, list[int]]
) -> None:
    broker.create_topic("t")
    broker.faults.fail("Fetch", 6, whole=whole)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    with connect(broker.bootstrap_servers) as connection:
        answer = ask(connection, request, 11)
    entries = [each.error_code for topic in answer.responses for each in topic.partitions]
    assert (answer.error_code, [code for code in entries if code]) == codes


def test_one_connection_is_meant(broker: Broker) -> None:
    seen: list[Request] = []

    def look(request: Request) -> bool:
        seen.append(request)
        return False

    broker.faults.delay("ListGroups", 0, predicate=look)
    with connect(broker.bootstrap_servers) as one, connect(broker.bootstrap_servers) as other:
        error(one)
        broker.faults.fail("ListGroups", 14, connection=seen[0].connection)
        assert (error(one), error(other)) == (14, 0)


def test_a_group_and_its_requests(broker: Broker) -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.faults.fail(["Heartbeat", "DescribeGroups"], "COORDINATOR_LOAD_IN_PROGRESS", group="g")
    with connect(broker.bootstrap_servers) as connection:
        assert ask(connection, HeartbeatRequest(group_id="g"), 0).error_code == loading
        assert ask(connection, HeartbeatRequest(group_id="h"), 0).error_code != loading
        described = ask(connection, DescribeGroupsRequest(groups=["h", "g"]), 0).groups
        assert [group.group_id for group in described if group.error_code == loading] == ["g"]


def test_a_fault_counts_is_removed_and_ends_with_its_block(broker: Broker) -> None:
    with connect(broker.bootstrap_servers) as connection:
        with broker.faults.fail("ListGroups", 14, times=2) as fault:
            assert [error(connection) for _ in range(3)] == [14, 14, 0]
            assert fault.hits == 2
            fault.wait_hits(2, timeout=PATIENCE_S)
            with pytest.raises(ValueError, match="has 2 hits at most: do not wait for 3"):
                fault.wait_hits(3)
        lasting = broker.faults.fail("ListGroups", 14)
        assert error(connection) == 14
        lasting.remove()
        lasting.remove()
        assert error(connection) == 0
        broker.faults.fail("ListGroups", 14)
        broker.faults.fail("ListGroups", 15)
        broker.faults.clear()
        assert error(connection) == 0
        assert len(broker.faults) == 0


def test_no_fault_no_cost(broker: Broker) -> None:
    dispatcher = broker.server.dispatcher
    assert dispatcher is not None
    assert dispatcher.dispatch == dispatcher.serve
    with broker.faults.fail("ListGroups", 14):
        assert dispatcher.dispatch != dispatcher.serve
    assert dispatcher.dispatch == dispatcher.serve


def test_faults_outlive_a_restart_and_not_a_stop() -> None:
    broker = Broker()
    with broker:
        broker.faults.fail("ListGroups", 14)
        broker.restart()
        with connect(broker.bootstrap_servers) as connection:
            assert error(connection) == 14
    with broker, connect(broker.bootstrap_servers) as connection:
        assert error(connection) == 0


@pytest.mark.parametrize(
    ("make", "kind", "what"),
    [
        (lambda faults: faults.fail("Produced", 3), ValueError, "did you mean 'Produce'"),
        (lambda faults: faults.fail("Produce", "NOT_LEADER"), ValueError, "did you mean 'NOT_LEADER_OR_FOLLOWER'"),
        (lambda faults: faults.fail("Produce", "NOT_LEADR"), ValueError, "did you mean 'NOT_LEADER_OR_FOLLOWER'"),
        (lambda faults: faults.fail("Produce", "REQUEST_TIMEOUT"), ValueError, "did you mean 'REQUEST_TIMED_OUT'"),
        (lambda faults: faults.fail("Produce", "QQQQQQ"), ValueError, "no error 'QQQQQQ': its name is to be one of"),
        (lambda faults: faults.fail("Produce", 0), ValueError, "means success"),
        (lambda faults: faults.fail("Produce", "NONE"), ValueError, r"^the error NONE \(0\) means success"),
        (lambda faults: faults.fail("Produce", ErrorCode.NONE), ValueError, "means success"),
        (lambda faults: faults.fail("Produce", "invalid_record"), ValueError, "did you mean 'INVALID_RECORD'"),
        (lambda faults: faults.fail("Produce", "none"), ValueError, r"^the error NONE \(0\) means success"),
        (lambda faults: faults.fail("Produce", "NO"), ValueError, "no error 'NO': its name is to be one of barnabas"),
        (
            lambda faults: faults.fail("Produce", 6, tims=1),
            TypeError,
            "times, after, .*, record_errors, whole, after_w",
        ),
        (lambda faults: faults.hold(after_wrok=True), TypeError, "seed, after_work$"),
        (lambda faults: faults.throttle("Produce", 1, after_work=True), TypeError, "seed$"),
        (lambda faults: faults.fail("Produce", "?"), ValueError, "no error '\\?': its name is to be one of barnabas"),
        (
            lambda faults: faults.fail("Produce", 999),
            ValueError,
            "^Kafka has no error 999: its numbers are -1 and 1 to",
        ),
        (lambda faults: faults.fail("Produce", -2), ValueError, "^Kafka has no error -2: "),
        (lambda faults: faults.fail("Produce", 2.5), TypeError, "^an error is its name, its number or an .*, not 2.5$"),
        (
            lambda faults: faults.fail("Produce", None),
            TypeError,
            "^an error is its name, its number or an .*, not None",
        ),
        (lambda faults: faults.fail("Produce", True), TypeError, "not True$"),
        (lambda faults: faults.fail(999, 3), ValueError, "no API with the key 999"),
        (
            lambda faults: faults.fail("Heartbeat", 16, topic="t"),
            ValueError,
            "^no request of Heartbeat has topic: leave",
        ),
        (
            lambda faults: faults.drop("Produce", group="g", topic="t"),
            ValueError,
            "^no request of Produce has group: ",
        ),
        (lambda faults: faults.hold(["Fetch", "Produce"], group="g"), ValueError, "of Produce, Fetch has group: "),
        (
            lambda faults: faults.hold(["Fetch", "Heartbeat"], topic="t", group="g"),
            ValueError,
            "^no request of Fetch, Heartbeat has topic and group at once: ",
        ),
        (
            lambda faults: faults.drop(["Produce", "Fetch"], version=[99, 0]),
            ValueError,
            r"^no request of Produce, Fetch has the version \{0, 99\}: there are Produce 3 to 13, Fetch 4 to",
        ),
        (lambda faults: faults.fail([], 6), ValueError, "^no API is named: name one"),
        (lambda faults: faults.drop(topic=[]), ValueError, "^topic is empty, so it matches no request"),
        (lambda faults: faults.pause(broker=[]), ValueError, "^broker is empty, so it matches no request"),
        (lambda faults: faults.drop(partition=-1), ValueError, "^partition is 0 or more, not -1$"),
        (
            lambda faults: faults.drop("ConsumerGroupHeartbeat"),
            ValueError,
            "^no broker here serves ConsumerGroupHeartbeat: ApiVersions omits it, so that clients do not send it$",
        ),
        (
            lambda faults: faults.fail(["LeaderAndIsr", "WriteTxnMarkers"], 6),
            ValueError,
            "^only brokers of a cluster send LeaderAndIsr, WriteTxnMarkers, to each other: add from_brokers=",
        ),
        (
            lambda faults: faults.fail("LeaderAndIsr", 6, from_brokers=True),
            ValueError,
            r"^a lone broker never gets LeaderAndIsr, which brokers send each other; use Cluster\(\)$",
        ),
        (lambda faults: faults.drop(version=99), ValueError, "^no request of any API has the version 99$"),
        (
            lambda faults: faults.fail("Fetch", 6, record_errors={0: "why"}),
            ValueError,
            "^record_errors need Produce: responses of Fetch have no errors of records$",
        ),
        (
            lambda faults: faults.fail("Produce", 87, record_errors={-1: "why"}),
            ValueError,
            "^record_errors are by the index of a record in its batch, 0 or more, not -1$",
        ),
        (
            lambda faults: faults.fail("Produce", 87, record_errors={"0": "why"}),
            TypeError,
            "^record_errors has a text by a whole number, not 'why' by '0'$",
        ),
        (lambda faults: faults.fail("Produce", 87, record_errors=["why"]), TypeError, "^record_errors are messages by"),
        (lambda faults: faults.drop("Produce", topics="t"), TypeError, "no such keyword: topics; there are version"),
        (lambda faults: faults.drop("Produce", times=0), ValueError, "times >= 1"),
        (lambda faults: faults.delay("Produce", (2, 1)), ValueError, "between 2 and 1 ms"),
        (lambda faults: faults.drop(times="2"), TypeError, "^times is a whole number, not '2'$"),
        (lambda faults: faults.refuse(after=None), TypeError, "^after is a whole number, not None$"),
        (
            lambda faults: faults.drop(probability="0.5"),
            TypeError,
            "^probability is a number above 0, 1 at most, not '0.5'$",
        ),
        (lambda faults: faults.drop(partition="0"), TypeError, "^partition is a whole number, not '0'$"),
        (lambda faults: faults.drop(version=[1, None]), TypeError, "^version is a whole number, not None$"),
        (lambda faults: faults.pause(broker=1.5), TypeError, r"^broker is a whole number, not 1\.5$"),
        (lambda faults: faults.drop(group=7), TypeError, "^group is a text, not 7$"),
        (lambda faults: faults.drop(client_id=b"x"), TypeError, "^client_id is a text, not b'x'$"),
        (lambda faults: faults.drop(topic=7), TypeError, "^topic is the name of one, or a Topic, not 7$"),
        (lambda faults: faults.hang_transaction(7), TypeError, "^topic is the name of one, or a Topic, not 7$"),
        (lambda faults: faults.drop(predicate="x"), TypeError, "^predicate is a function of a Request, not 'x'$"),
        (
            lambda faults: faults.delay("Fetch", "1s"),
            TypeError,
            "^a duration is a timedelta or a number of ms, not '1s'$",
        ),
        (
            lambda faults: faults.disk_slow((1, "2")),
            TypeError,
            "^a duration is a timedelta or a number of ms, not '2'$",
        ),
        (
            lambda faults: faults.throttle("Fetch", True),
            TypeError,
            "^a duration is a timedelta or a number of ms, not T",
        ),
        (lambda faults: faults.delay("Fetch", (1, 2, 3)), ValueError, "^a range of durations is the shortest and the"),
        (lambda faults: faults.fence_producer("x"), ApiError, "NOT_FOUND: no producer has the transactional id x$"),
        (lambda faults: faults.garble("Fetch", "bits"), ValueError, "cut, short, correlation_id, records, not bits"),
        (
            lambda faults: faults.garble("Produce", "records"),
            ValueError,
            "responses of Produce have no records: name Fetch",
        ),
        (lambda faults: faults.garble(["Fetch", "Metadata"], "records"), ValueError, "responses of Metadata have no"),
    ],
)
def test_arguments_that_make_no_sense(
    make: Callable[[Any], Fault], kind: type[Exception], what: str, broker: Broker
) -> None:
    with pytest.raises(kind, match=what):
        make(broker.faults)
    assert len(broker.faults) == 0


# --- fail -----------------------------------------------------------------------------------------


def test_nothing_is_written_when_produce_fails_before_the_work(broker: Broker) -> None:
    topic = broker.create_topic("t", partitions=2)
    broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", topic="t", partition=1, times=1)
    with connect(broker.bootstrap_servers) as connection:
        assert codes(ask(connection, produce(0, 1), 8)) == {0: 0, 1: ErrorCode.NOT_ENOUGH_REPLICAS}
        assert [record.partition for record in topic.records()] == [0]
        assert codes(ask(connection, produce(0, 1), 8)) == {0: 0, 1: 0}


def test_all_is_written_when_produce_fails_after_the_work(broker: Broker) -> None:
    topic = broker.create_topic("t", partitions=2)
    broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", partition=1, after_work=True)
    with connect(broker.bootstrap_servers) as connection:
        assert codes(ask(connection, produce(0, 1), 8)) == {0: 0, 1: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert [record.partition for record in topic.records()] == [0, 1]


def test_a_produce_without_a_reply_loses_its_connection(broker: Broker) -> None:
    topic = broker.create_topic("t")
    with broker.faults.fail("Produce", 3), connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(produce(0, acks=0), 8))
        assert receive(connection) is None
    assert topic.records() == []


def test_errors_of_records(broker: Broker) -> None:
    broker.create_topic("t")
    broker.faults.fail("Produce", "INVALID_RECORD", "no good", record_errors={0: "has no key"})
    with connect(broker.bootstrap_servers) as connection:
        [topic] = ask(connection, produce(0), 8).responses
    [answer] = topic.partition_responses
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_RECORD, "no good")
    assert [(each.batch_index, each.batch_index_error_message) for each in answer.record_errors] == [(0, "has no key")]


def test_a_producer_tries_again_until_it_may(broker: Broker) -> None:
    topic = broker.create_topic("t")
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="t", times=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1})
    producer.produce("t", "once")
    assert producer.flush(PATIENCE_S) == 0
    assert fault.hits == 2
    assert [record.value for record in topic.records()] == [b"once"]


def test_a_lost_acknowledgement_doubles_non_idempotent_records(broker: Broker) -> None:
    topic = broker.create_topic("t")
    for is_idempotent, values in ((False, [b"v", b"v"]), (True, [b"v", b"v", b"v"])):
        config = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1}
        producer = Producer(config | {"enable.idempotence": is_idempotent})
        with broker.faults.fail("Produce", "REQUEST_TIMED_OUT", after_work=True, times=1) as fault:
            producer.produce("t", "v")
            assert producer.flush(PATIENCE_S) == 0
            assert fault.hits == 1
        assert [record.value for record in topic.records()] == values


def test_a_topic_that_metadata_will_not_tell_of(broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_topic("u")
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="t")
    wanted = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="u")]
    with connect(broker.bootstrap_servers) as connection:
        for topics in (wanted, None):
            told = ask(connection, MetadataRequest(topics=topics), 7)
            assert {topic.name: topic.error_code for topic in told.topics} == {
                "t": ErrorCode.LEADER_NOT_AVAILABLE,
                "u": 0,
            }
            assert len(told.brokers) == 1


def test_metadata_that_fails_creates_no_topic(broker: Broker) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    with broker.faults.fail("Metadata", 5), connect(broker.bootstrap_servers) as connection:
        [topic] = ask(connection, request, 7).topics
    assert topic.error_code == 5
    assert broker.topic_names() == []


def test_a_consumer_gets_over_a_partition_that_fails(broker: Broker) -> None:
    topic = broker.create_topic("t", partitions=2)
    fault = broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic="t", partition=1, times=2)
    for partition in (0, 1):
        topic.produce("v", partition=partition)
    consumer = KafkaConsumer(
        "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", retry_backoff_ms=1,
        metadata_max_age_ms=1000,
    )  # fmt: skip
    try:
        found = {next(consumer).partition for _ in range(2)}
    finally:
        consumer.close()
    assert found == {0, 1}
    assert fault.hits == 2


def test_unnamed_partitions_of_a_fetch_session_fail(broker: Broker) -> None:
    """A partition in which nothing is new is in no reply of the session; its error is, at once."""
    broker.create_topic("t")
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    first = FetchRequest(max_bytes=1000, session_epoch=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    with connect(broker.bootstrap_servers, timeout_s=PATIENCE_S) as connection:
        opened = ask(connection, first, 11)
        broker.faults.fail("Fetch", "OFFSET_OUT_OF_RANGE", topic="t", partition=0)
        following = FetchRequest(
            max_bytes=1000, max_wait_ms=60_000, min_bytes=1, session_id=opened.session_id, session_epoch=1
        )
        [topic] = ask(connection, following, 11).responses
        assert [each.error_code for each in topic.partitions] == [ErrorCode.OFFSET_OUT_OF_RANGE]


def test_an_admin_hears_that_a_topic_is_not_created(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with broker.faults.fail("CreateTopics", "POLICY_VIOLATION", "not on a Monday", topic="one"):
        futures = admin.create_topics([NewTopic("one", 1), NewTopic("other", 1)])
        futures["other"].result(PATIENCE_S)
        with pytest.raises(KafkaException, match="not on a Monday"):
            futures["one"].result(PATIENCE_S)
    assert broker.topic_names() == ["other"]


def is_silent(broker: Broker, connection: socket.socket) -> bool:
    """Whether nothing has come by the time that a later request, over another connection, is answered."""
    with connect(broker.bootstrap_servers) as other:
        error(other)
    return select.select([connection], [], [], 0)[0] == []


# --- delay, hold ----------------------------------------------------------------------------------


def test_a_delay_is_the_brokers_time_and_holds_the_order() -> None:
    with Broker(clock=ManualClock()) as broker, connect(broker.bootstrap_servers) as connection:
        broker.faults.delay("Heartbeat", timedelta(minutes=5))
        connection.sendall(frame(HeartbeatRequest(), 0, 1) + frame(LIST_GROUPS, 1, 2))
        assert is_silent(broker, connection)
        broker.clock.advance(timedelta(minutes=5))
        answers = [receive(connection), receive(connection)]
        assert [int.from_bytes((answer or b"")[:4]) for answer in answers] == [1, 2]


def test_delays_of_a_distribution(broker: Broker) -> None:
    drawn: list[int] = []

    def draw(chance: Any) -> int:
        drawn.append(chance.choice([1, 2, 3]))
        return drawn[-1]

    with (
        connect(broker.bootstrap_servers) as connection,
        broker.faults.delay("ListGroups", draw, seed=1),
        broker.faults.delay("ListGroups", (1, 3), after_work=True),
    ):
        for _ in range(10):
            error(connection)
    assert len(drawn) == 10
    assert len(set(drawn)) > 1


def test_requests_are_held_until_they_are_released(broker: Broker) -> None:
    topic = broker.create_topic("t")
    hold = broker.faults.hold("Produce")
    with connect(broker.bootstrap_servers) as one, connect(broker.bootstrap_servers) as other:
        for connection in (one, other):
            connection.sendall(frame(produce(0), 8))
        hold.wait_held(2)
        assert topic.records() == []
        hold.release(1)
        assert len(topic.wait_records(1)) == 1
        assert hold.held == 1
        hold.remove()
        assert len(topic.wait_records(2)) == 2
        assert (receive(one), receive(other)) != (None, None)
    assert hold.hits == 2


def test_replies_are_held_after_the_work(broker: Broker) -> None:
    topic = broker.create_topic("t")
    with connect(broker.bootstrap_servers) as connection:
        with broker.faults.hold("Produce", after_work=True) as hold:
            connection.sendall(frame(produce(0), 8))
            hold.wait_held()
            assert len(topic.records()) == 1
        assert receive(connection) is not None


def test_a_held_client_may_go(broker: Broker) -> None:
    hold = broker.faults.hold("ListGroups")
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(LIST_GROUPS, 1))
        hold.wait_held()
    wait_until(lambda: not hold.held)
    broker.faults.clear()


def test_waiting_does_not_block_an_event_loop(broker: Broker) -> None:
    broker.create_topic("t")

    async def race() -> None:
        hold = broker.faults.hold("Produce")
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            sent = await producer.send("t", b"v")
            await hold.wait_held_async()
            await hold.wait_hits_async()
            assert not sent.done()
            with pytest.raises(RuntimeError, match="await wait_held_async"):
                hold.wait_held()
            hold.remove()
            await sent

    asyncio.run(race())


def waiting_count(broker: Broker) -> int:
    """How many wait for something at the broker."""

    async def count() -> int:
        return sum(brokers_of(task) is not None for task in asyncio.all_tasks())

    return broker.call(count())


AWAITED: list[Callable[[Broker, float], Coroutine[Any, Any, object]]] = [
    lambda broker, timeout: broker.faults.hold("Produce").wait_held_async(timeout=timeout),
    lambda broker, timeout: broker.faults.hold("Produce").wait_hits_async(timeout=timeout),
    lambda broker, timeout: broker.faults.leader_away("t").wait_hits_async(timeout=timeout),
    lambda broker, timeout: broker.recorded().wait_request_async(timeout=timeout),
]


@pytest.mark.parametrize("wait", AWAITED, ids=["held", "hits", "hits of several", "request"])
def test_forty_wait_at_once_and_are_cancelled(
    broker: Broker, wait: Callable[[Broker, float], Coroutine[Any, Any, object]]
) -> None:
    """More than asyncio has threads for; and nobody waits for them any more: asyncio's own end would, for longer than a
    test may take."""

    async def cancel() -> None:
        waiting = [asyncio.create_task(wait(broker, 3_600)) for _ in range(40)]
        while await asyncio.to_thread(waiting_count, broker) < len(waiting):
            pass
        for each in waiting:
            each.cancel()
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {
            asyncio.CancelledError
        }
        while await asyncio.to_thread(waiting_count, broker):
            pass
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(broker, 3_600), 0.01)

    asyncio.run(cancel())


def test_a_wait_that_is_cancelled_before_it_begins(broker: Broker) -> None:
    hold = broker.faults.hold("Produce")

    async def cancel() -> None:
        waiting = [asyncio.create_task(hold.wait_held_async(timeout=PATIENCE_S)) for _ in range(40)]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(cancel())
        gc.collect()


def test_a_wait_for_more_hits_than_possible_fails_at_once(broker: Broker) -> None:
    """The time would be over before anybody is told."""
    hold = broker.faults.hold("Produce", times=3)
    for wait in (hold.wait_hits, hold.wait_held):
        with pytest.raises(
            ValueError, match=r"^<hold Produce \(times=3\), 0 hits> has 3 hits at most: do not wait for 5"
        ):
            wait(5)
    for awaited in (hold.wait_hits_async, hold.wait_held_async):
        with pytest.raises(ValueError, match="has 3 hits at most: do not wait for 5"):
            asyncio.run(awaited(5))
    several = broker.faults.leader_away("t")
    assert several.times is None


@pytest.mark.parametrize("end", ["remove", "clear", "reset"])
@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (lambda fault: fault.wait_hits(3), "0 hits>: not 3 hits"),
        (lambda fault: asyncio.run(fault.wait_hits_async(3)), "0 hits>: not 3 hits"),
        (lambda fault: fault.wait_held(), "0 requests are held, not 1"),
        (lambda fault: asyncio.run(fault.wait_held_async()), "0 requests are held, not 1"),
    ],
    ids=["hits", "hits, awaited", "held", "held, awaited"],
)
def test_a_wait_for_an_ended_fault_fails_at_once(
    broker: Broker, wait: Callable[[Fault], None], told: str, end: str
) -> None:
    told = rf"{told}, and no more can come: the fault has ended by remove\(\), reset\(\) or the end of its `with` block"
    fault = broker.faults.hold("Produce")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, fault)
        wait_until(lambda: waiting_count(broker))
        {"remove": fault.remove, "clear": broker.faults.clear, "reset": broker.reset}[end]()
        with pytest.raises(RuntimeError, match=told):
            waiting.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match=told):
        wait(fault)


def test_faults_of_several_parts_end_with_the_last_one(broker: Broker) -> None:
    away = broker.faults.leader_away("t")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(away.wait_hits)
        away.remove()
        with pytest.raises(RuntimeError, match="and no more can come"):
            waiting.result(PATIENCE_S)


def test_hits_before_the_end_count(broker: Broker) -> None:
    with broker.faults.fail("ListGroups", 14) as fault, connect(broker.bootstrap_servers) as connection:
        ask(connection, LIST_GROUPS, 1)
    fault.wait_hits()


# --- drop, disconnect, garble, throttle, refuse ---------------------------------------------------


@pytest.mark.parametrize("after_work", [False, True])
def test_a_dropped_request_is_never_answered(broker: Broker, after_work: bool) -> None:
    topic = broker.create_topic("t")
    with connect(broker.bootstrap_servers) as connection:
        drop = broker.faults.drop("Produce", times=1, after_work=after_work)
        connection.sendall(frame(produce(0), 8) + frame(produce(0), 8))
        drop.wait_hits()
        assert is_silent(broker, connection)
        drop.remove()
        assert receive(connection) is None
    assert len(topic.records()) == int(after_work)


def test_a_producer_gets_over_a_lost_request(broker: Broker) -> None:
    topic = broker.create_topic("t")
    drop = broker.faults.drop("Produce", times=1)
    config = {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": 1000, "request.timeout.ms": 500}
    producer = Producer(config | {"enable.idempotence": True})  # a busy machine may answer too late
    producer.produce("t", "v")
    assert producer.flush(PATIENCE_S) == 0
    assert drop.hits == 1
    assert len(topic.records()) == 1


@pytest.mark.parametrize("after_work", [False, True])
def test_disconnecting(broker: Broker, after_work: bool) -> None:
    topic = broker.create_topic("t")
    with connect(broker.bootstrap_servers) as connection:
        broker.faults.disconnect("Produce", after_work=after_work, times=1)
        assert ask(connection, produce(0), 8) is None
    assert len(topic.records()) == int(after_work)
    with connect(broker.bootstrap_servers) as connection:
        assert codes(ask(connection, produce(0), 8)) == {0: 0}


def test_garbled_frames(broker: Broker) -> None:
    def answer(way: str) -> bytes | None:
        with broker.faults.garble("ApiVersions", way), connect(broker.bootstrap_servers) as connection:
            connection.sendall(frame(ApiVersionsRequest(), 2, correlation_id=5))
            return receive(connection)

    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(ApiVersionsRequest(), 2, correlation_id=5))
        whole = receive(connection)
    assert whole is not None
    assert answer("correlation_id") == (5 ^ 0x40000000).to_bytes(4) + whole[4:]
    short = answer("short")
    assert short is not None
    assert short == whole[: len(short)] != whole
    with broker.faults.garble("ApiVersions", "cut"), connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(ApiVersionsRequest(), 2, correlation_id=5))
        cut = b"".join(iter(lambda: connection.recv(4096), b""))
    assert cut == (len(whole).to_bytes(4) + whole)[: len(cut)]
    assert 4 < len(cut) < len(whole)


def test_nothing_follows_a_reply_that_was_cut(broker: Broker) -> None:
    """A client would take the next reply for the rest of that one: librdkafka died of it."""
    requests = b"".join(frame(ApiVersionsRequest(), 2, correlation_id=each) for each in range(3))
    with broker.faults.garble("ApiVersions", "cut", times=1), connect(broker.bootstrap_servers) as connection:
        connection.sendall(requests)
        cut = b"".join(iter(lambda: connection.recv(4096), b""))
    assert len(cut) < 4 + int.from_bytes(cut[:4])


def test_only_answers_that_can_be_damaged_are_hit(broker: Broker) -> None:
    """Not those without records, or without any of what is meant, nor a Produce that has no answer."""

    def fetch(offset: int) -> dict[str, bytes]:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        topics = [FetchTopic(topic=name, partitions=[partition]) for name in ("t", "u")]
        answer = ask(connection, FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 11)
        return {topic.topic: bytes(topic.partitions[0].records or b"") for topic in answer.responses}

    for name in ("t", "u"):
        broker.create_topic(name).produce("v")
    garble = broker.faults.garble(None, "records", topic="t", times=1)
    with connect(broker.bootstrap_servers) as connection:
        assert fetch(1) == {"t": b"", "u": b""}
        assert (garble.hits, garble.matches) == (0, 0)
        damaged, whole = fetch(0), fetch(0)
        assert (damaged["u"], damaged["t"][:-1]) == (whole["u"], whole["t"][:-1])
        assert damaged["t"][-1] != whole["t"][-1]
        assert (garble.hits, garble.matches) == (1, 1)
        cut = broker.faults.garble("Produce", "cut", times=1)
        connection.sendall(frame(produce(0, acks=0), 8))
        assert error(connection) == 0
        assert (cut.hits, ask(connection, produce(0), 8), cut.hits) == (0, None, 1)


def test_a_consumer_refuses_a_garbled_batch(broker: Broker) -> None:
    topic = broker.create_topic("t")
    topic.produce("v")
    garble = broker.faults.garble("Fetch", "records", topic="t", predicate=lambda request: garble_is_on.is_set())
    garble_is_on = threading.Event()
    garble_is_on.set()
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(config | {"check.crcs": True, "retry.backoff.ms": 1, "fetch.error.backoff.ms": 1})
    consumer.subscribe(["t"])
    try:
        told = consumer.poll(PATIENCE_S)
        assert told is not None
        assert told.error() is not None
        assert garble.hits > 0
        garble_is_on.clear()
        while (told := consumer.poll(PATIENCE_S)) is not None and told.error() is not None:
            pass
        assert told is not None
        assert told.value() == b"v"
    finally:
        consumer.close()


def test_throttling_is_told_and_done() -> None:
    with Broker(clock=ManualClock()) as broker, connect(broker.bootstrap_servers) as connection:
        broker.faults.throttle("Heartbeat", timedelta(seconds=3), times=1)
        assert ask(connection, HeartbeatRequest(), 1).throttle_time_ms == 3000
        connection.sendall(frame(LIST_GROUPS, 1))
        assert is_silent(broker, connection)
        broker.clock.advance(timedelta(seconds=3))
        assert receive(connection) is not None


def test_new_connections_are_refused(broker: Broker) -> None:
    with connect(broker.bootstrap_servers) as before:
        assert error(before) == 0  # only now it is sure to be accepted
        with broker.faults.refuse(times=2) as refusal:
            for _ in range(2):
                with connect(broker.bootstrap_servers) as connection:
                    assert receive(connection) is None
            assert refusal.hits == 2
            with connect(broker.bootstrap_servers) as connection:
                assert error(connection) == 0
        assert error(before) == 0


# --- together -------------------------------------------------------------------------------------


def test_faults_come_one_over_the_other(broker: Broker) -> None:
    broker.create_topic("t", partitions=3)
    broker.faults.fail("Produce", 6, partition=0)
    broker.faults.fail("Produce", 7, partition=1, after_work=True)
    broker.faults.throttle("Produce", 1)
    with connect(broker.bootstrap_servers) as connection:
        answer = ask(connection, produce(0, 1, 2), 8)
    assert codes(answer) == {0: 6, 1: 7, 2: 0}
    assert answer.throttle_time_ms == 1


def test_a_cluster_has_faults_at_any_of_its_brokers() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic("t")
        cluster.faults.fail("ListGroups", 14, broker=1)
        first, second = (broker.bootstrap_servers for broker in cluster.brokers)
        with connect(first) as one, connect(second) as other:
            assert (error(one), error(other)) == (0, 14)
            with cluster.faults.refuse(broker=1) as refusal, connect(first) as admitted, connect(second) as refused:
                assert receive(refused) is None
                assert error(admitted) == 0
                assert refusal.hits >= 1  # brokers that connect are refused, too
        # Brokers fetch from each other as before.
        fetch = cluster.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic="t")
        producer = Producer({"bootstrap.servers": first})
        producer.produce("t", "v")
        assert producer.flush(PATIENCE_S) == 0
        assert fetch.hits == 0
        cluster.faults.clear()
        cluster.brokers[1].stop()
        cluster.faults.fail("ListGroups", 14)
        cluster.brokers[1].start()
        with connect(second) as other:
            assert error(other) == 14


@SEEDED
def test_a_broker_is_sound_after_faults_of_all_kinds(tmp_path: Path, seed: int | None) -> None:
    """Every acknowledged record is there, in order, once for each epoch of its producer, and the logs are whole.

    librdkafka raises its epoch after a response that it cannot read, and sends the records under way again: a broker
    cannot tell them from others.
    """
    draw = chance(seed)
    acknowledged: list[bytes] = []
    with Broker(data_dir=tmp_path) as broker:
        topic = broker.create_topic("t")
        faults = broker.faults
        for after_work in (False, True):
            faults.fail("Produce", 6, after_work=after_work, probability=0.1, seed=draw.randrange(2**32))
            faults.disconnect("Produce", after_work=after_work, probability=0.1, seed=draw.randrange(2**32))
            faults.delay(None, (0, 5), after_work=after_work, probability=0.1, seed=draw.randrange(2**32))
        faults.garble("Produce", "cut", probability=0.1, seed=draw.randrange(2**32))
        faults.fail("Metadata", 5, probability=0.1, seed=draw.randrange(2**32))
        faults.disk_full(probability=0.1, seed=draw.randrange(2**32))
        quick = {"retry.backoff.ms": 1, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 10, "linger.ms": 0}
        config = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        producer = Producer(config | quick)
        for number in range(100):
            producer.produce(
                "t", str(number), on_delivery=lambda error, record: error or acknowledged.append(record.value())
            )
            producer.poll(0.005)
        producer.flush(PATIENCE_S)
        faults.clear()
        assert producer.flush(PATIENCE_S) == 0
        stored = dict.fromkeys(record.value for record in topic.records())
        assert [value for value in stored if value in acknowledged] == acknowledged
        assert len(acknowledged) > 90
        assert len(faults) == 0
    [segment] = tmp_path.glob("t-0/*.log")
    sequences: dict[int, int] = {}
    for header in iter_headers(segment.read_bytes()):
        assert header.base_sequence == sequences.get(header.producer_epoch, 0)
        sequences[header.producer_epoch] = header.base_sequence + header.record_count
    checked = subprocess.run(
        [sys.executable, "-m", "barnabas", "check", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- durations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration", "ms"),
    [(0.25, 0.25), (timedelta(microseconds=1250), 1.25), (2, 2), ((0.25, 0.25), 0.25), (lambda chance: 0.25, 0.25)],
)
def test_fractions_of_a_ms(broker: Broker, duration: Any, ms: float) -> None:
    fault = broker.faults.delay("ListGroups", duration)
    assert isinstance(fault._effect, Delay)
    assert fault._effect.draw_ms() == ms
    with connect(broker.bootstrap_servers) as connection:
        assert ask(connection, ListGroupsRequest(), 0) is not None
    assert fault.hits == 1


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("ms", [0.25, 1.25, 2])
def test_fractions_of_a_ms_are_waited_for(broker: Broker, ms: float) -> None:
    """The remainder of the whole ms is slept, as no clock of a broker knows it. That ticks once in a ms, so that the
    first of the whole ones may be over at once."""
    least_ms = ms - 1 if ms >= 1 else ms
    broker.faults.delay("ListGroups", ms)
    with connect(broker.bootstrap_servers) as connection:
        before_s = time.perf_counter()
        assert ask(connection, ListGroupsRequest(), 0) is not None
        assert time.perf_counter() - before_s >= least_ms / 1000


def test_a_range_of_fractions_has_all_in_between(broker: Broker) -> None:
    effect = broker.faults.delay("ListGroups", (0.25, 0.75), seed=1)._effect
    assert isinstance(effect, Delay)
    drawn = [effect.draw_ms() for _ in range(100)]
    assert all(0.25 <= each <= 0.75 for each in drawn)
    assert len(set(drawn)) > 90
    for wrong in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a duration of"):
            broker.faults.delay("ListGroups", wrong)


def test_fractions_of_milliseconds_are_rounded(broker: Broker) -> None:
    clock = ManualClock(1_700_000_000_000)
    with Broker(clock=clock) as still:
        still.clock.advance(0.5)
        still.clock.advance(timedelta(microseconds=1500))
        assert still.clock.now_ms() == 1_700_000_000_003
    throttle = broker.faults.throttle("ListGroups", 0.5)._effect
    assert isinstance(throttle, Throttle)
    assert throttle.throttle_time_ms == 1


def test_faults_hit_requests_of_brokers_that_send_them(broker: Broker) -> None:
    with broker.faults.hold("WriteTxnMarkers", from_brokers=True), broker.faults.hold(["LeaderAndIsr", "Fetch"]):
        assert len(broker.faults) == 2  # tools ask for the first, clients for one of the others
    with Cluster(2) as cluster, cluster.faults.delay("LeaderAndIsr", 1, from_brokers=True) as fault:
        cluster.create_topic("t")
        fault.wait_hits()
