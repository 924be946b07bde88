"""`barnabas serve --control`: what tests in any language ask of brokers by HTTP and JSON."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from barnabas.testing.control.fields import DEADLINE
from barnabas.testing.control.served import BROKERS_MAX
from barnabas.testing.control.verbs import VERBS
from barnabas.testing.faults.faults import Faults
from barnabas.testing.interception.selection import Matching
from tests.support.reference_loop import assert_within, work_s
from tests.testing.control_client import ControlClient
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]

CALL = re.compile(r"""\.(?:get|post|delete|refused|ask|done)\(\s*(?:"[A-Z]+", )?f?"([^"]*)\"""")
"""The paths that a test requests, in its own text."""


class Asked:
    """A broker that was asked for over HTTP."""

    def __init__(self, control: ControlClient, **fields: Any) -> None:
        self.control = control
        told = control.done("POST", "/brokers", **fields)
        self.name: str = told["name"]
        self.servers: str = told["bootstrap_servers"]
        self.warnings: list[str] = told["warnings"]

    def get(self, what: str, /, **fields: Any) -> Any:
        return self.control.done("GET", f"/brokers/{self.name}{what and '/'}{what}", **fields)

    def post(self, verb: str, /, **fields: Any) -> Any:
        return self.control.done("POST", f"/brokers/{self.name}/{verb}", **fields)

    def delete(self, what: str = "") -> Any:
        return self.control.done("DELETE", f"/brokers/{self.name}{what and '/'}{what}")

    def refused(self, method: str, verb: str, /, **fields: Any) -> tuple[int, str]:
        answer = self.control.ask(method, f"/brokers/{self.name}/{verb}", **fields)
        self.control.check(answer.content, {"$ref": "#/components/schemas/Error"}, verb)
        assert "\n" not in answer.content["error"]
        return answer.status, answer.content["error"]

    def producer(self, **config: Any) -> Producer:
        options = {"bootstrap.servers": self.servers, "client.id": "shop", "linger.ms": 0, "retry.backoff.ms": 10}
        return Producer({**options, **{key.replace("_", "."): value for key, value in config.items()}})

    def consumer(self, group: str, **config: Any) -> Consumer:
        options = {"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest"}
        return Consumer({**options, **{key.replace("_", "."): value for key, value in config.items()}})


@pytest.fixture
def start(control: ControlClient) -> Iterator[Callable[..., Asked]]:
    started: list[Asked] = []

    def start(**fields: Any) -> Asked:
        started.append(Asked(control, **fields))
        return started[-1]

    yield start
    for each in started:
        control.ask("DELETE", f"/brokers/{each.name}")


@pytest.fixture
def broker(start: Callable[..., Asked]) -> Asked:
    return start(seed_topics={"orders": 1})


def send(broker: Asked, value: str = "1", **config: Any) -> KafkaError | None:
    """Produce one record; what the client ended in."""
    errors: list[KafkaError | None] = []
    producer = broker.producer(**config)
    producer.produce("orders", value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return errors[0]


def values(broker: Asked) -> list[str]:
    return [record["value"] for record in broker.get("records", topic="orders")["records"]]


def meanwhile(action: Callable[[], Any]) -> "Future[Any]":
    done: Future[Any] = Future()
    threading.Thread(target=lambda: done.set_result(action()), daemon=True).start()
    return done


# --- brokers --------------------------------------------------------------------------------------


def test_the_broker_of_the_command_line_is_main(process: BarnabasControl, control: ControlClient) -> None:
    [main] = [each for each in control.done("GET", "/brokers")["brokers"] if each["name"] == "main"]
    assert main["bootstrap_servers"] == process.bootstrap_servers
    assert control.done("GET", "/")["openapi"] == "/openapi.json"
    status, content = control.ask("DELETE", "/brokers/main")
    assert (status, content) == (409, {"error": "main is the broker of this process, and ends with it"})


def test_brokers_come_and_go(control: ControlClient, start: Callable[..., Asked]) -> None:
    one = start(name="one", configs={"num.partitions": 3, "auto.create.topics.enable": False})
    other = start(seed_topics={"orders": 2})
    assert one.servers != other.servers
    assert one.get("topics") == {"topics": []}
    one.post("create_topic", name="t", configs={"retention.ms": 1000})
    assert [each["topic"] for each in one.get("records", topic="t")["records"]] == []
    assert other.get("topics") == {"topics": ["orders"]}
    assert control.ask("POST", "/brokers", name="one").status == 409
    one.delete()
    assert control.ask("GET", "/brokers/one").status == 404
    with pytest.raises(KafkaException):
        one.consumer("g").list_topics(timeout=0.5)  # Real time: in vain
    assert one.name == start(name="one").name


def test_all_brokers_go_but_main(control: ControlClient, start: Callable[..., Asked]) -> None:
    start(name="one")
    start(brokers=2)
    assert control.done("DELETE", "/brokers") == {}
    assert [each["name"] for each in control.done("GET", "/brokers")["brokers"]] == ["main"]
    assert start(name="one").name == "one"


def test_configurations_are_checked(control: ControlClient, start: Callable[..., Asked]) -> None:
    assert start(configs={"num.partitons": 3}).warnings == [
        "num.partitons is not a configuration of Kafka or Barnabas; did you mean num.partitions?"
    ]
    status, content = control.ask("POST", "/brokers", configs={"num.partitions": "many"})
    assert status == 400
    assert "num.partitions" in content["error"]
    assert control.ask("POST", "/brokers", seed_topics={"no/name": 1}).content["kafka_error"] == (
        "INVALID_TOPIC_EXCEPTION"
    )
    assert len([each for each in control.done("GET", "/brokers")["brokers"] if each["name"] != "main"]) == 1


@pytest.mark.full
@pytest.mark.alone
def test_a_broker_is_ready_in_milliseconds(control: ControlClient) -> None:
    """Some 15 ms, with the HTTP request."""

    def start_s() -> float:
        began_s = perf_counter()
        broker = Asked(control)
        taken_s = perf_counter() - began_s
        broker.delete()
        return taken_s

    assert_within(6, work_s, start_s, "POST /brokers")


def test_time_stands_still(start: Callable[..., Asked]) -> None:
    broker = start(clock_ms=1_700_000_000_000, seed_topics={"orders": 1})
    assert broker.get("clock") == {"now_ms": 1_700_000_000_000, "monotonic_ms": 0}
    assert broker.post("advance", duration_ms=5) == {"now_ms": 1_700_000_000_005, "monotonic_ms": 5}
    assert broker.post("produce", topic="orders", value="1")["timestamp_ms"] == 1_700_000_000_005


def test_as_many_brokers_as_there_may_be(process: BarnabasControl, start: Callable[..., Asked]) -> None:
    before_kib = resident_kib(process.pid)
    others = len(start().control.done("GET", "/brokers")["brokers"])
    for _ in range(BROKERS_MAX - others):
        last = start()
    answer = last.control.ask("POST", "/brokers")
    assert (answer.status, answer.content["error"]) == (
        409,
        f"there may be {BROKERS_MAX} brokers at most: DELETE /brokers/NAME ends one",
    )
    grown_kib = (resident_kib(process.pid) - before_kib) // BROKERS_MAX
    print(f"{grown_kib} KiB for each broker")
    assert grown_kib < 4096


def resident_kib(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


def test_a_broker_ends_and_starts_again(broker: Asked) -> None:
    send(broker)
    assert broker.post("restart")["bootstrap_servers"] == broker.servers
    assert broker.post("kill")["nodes"][0]["is_running"] is False
    assert broker.refused("GET", "topics")[0] == 409
    assert broker.post("start")["nodes"][0]["is_running"] is True
    assert values(broker) == ["1"]
    assert broker.refused("POST", "stop", node=0)[0] == 409


# --- faults of requests ---------------------------------------------------------------------------


def test_fail(broker: Asked) -> None:
    fault = broker.post("fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic=["orders", "other"], times=2)
    assert fault["description"] == ("fail Produce NOT_LEADER_OR_FOLLOWER (topic={'orders', 'other'}, times=2), 0 hits")
    assert send(broker) is None
    number = fault["fault"]
    assert broker.post(f"faults/{number}/wait_hits", count=2, timeout_ms=1000)["hits"] == 2
    assert broker.get(f"faults/{number}")["hits"] == 2
    assert values(broker) == ["1"]
    assert broker.delete(f"faults/{number}")["hits"] == 2
    assert broker.get("faults") == {"faults": []}
    assert broker.refused("GET", f"faults/{number}")[0] == 404


def test_fail_in_all_ways(broker: Asked) -> None:
    broker.post(
        "fail", api=["Produce"], error=87, record_errors={"0": "no such currency"}, after=0, every=1, probability=1,
        seed=7,
    )  # fmt: skip
    error = send(broker)
    assert error is not None
    assert error.name() == "INVALID_RECORD"
    broker.delete("faults")
    broker.post("fail", api="Produce", error="REQUEST_TIMED_OUT", after_work=True, client_id="shop", times=1)
    assert send(broker, enable_idempotence=False) is None
    assert values(broker) == ["1", "1"]


def test_delay(broker: Asked) -> None:
    broker.post("recorded")
    broker.post("delay", api="Produce", duration_ms=3_600_000)
    sending = meanwhile(lambda: send(broker))
    broker.post("faults/1/wait_hits")
    before = broker.get("clock")["now_ms"]
    assert broker.post("advance", duration_ms=3_600_000)["now_ms"] >= before + 3_600_000
    assert sending.result(PATIENCE_S) is None
    broker.delete("faults/1")
    broker.post("delay", duration_ms=[0, 1])
    assert send(broker) is None


def test_hold(broker: Asked) -> None:
    number = broker.post("hold", api="Produce")["fault"]
    sending = meanwhile(lambda: send(broker))
    assert broker.post(f"faults/{number}/wait_held")["held"] == 1
    assert values(broker) == []
    assert not sending.done()
    broker.post(f"faults/{number}/release", count=1)
    assert sending.result(PATIENCE_S) is None
    assert values(broker) == ["1"]
    status, error = broker.refused("POST", f"faults/{number}/wait_held", timeout_ms=10)
    assert (status, error) == (504, "after 0.01 s 0 requests are held, not 1")


def test_a_reset_ends_what_is_under_way(start: Callable[..., Asked]) -> None:
    broker = start(clock_ms=1_700_000_000_000)  # in which nothing that was refused is tried again
    number = broker.post("disk_full")["fault"]
    creating = meanwhile(lambda: broker.refused("POST", "create_topic", name="t"))
    broker.post(f"faults/{number}/wait_hits")
    broker.post("reset")
    told = "POST /brokers/{broker}/create_topic: the broker was reset meanwhile"
    assert creating.result(PATIENCE_S) == (409, told)


def test_drop_and_disconnect(broker: Asked) -> None:
    fast = {"request_timeout_ms": 1000, "socket_timeout_ms": 1000, "reconnect_backoff_ms": 10}
    lost = broker.post("drop", api="Produce", times=1)["fault"]
    closed = broker.post("disconnect", api="Produce", after=1, times=1, after_work=True)["fault"]
    assert send(broker, enable_idempotence=True, **fast) is None
    assert [broker.get(f"faults/{number}")["hits"] for number in (lost, closed)] == [1, 1]
    assert values(broker) == ["1"]


def test_garble(broker: Asked) -> None:
    send(broker)
    broker.post("garble", api="Fetch", way="records", times=1)
    consumer = broker.consumer("g", check_crcs=True)
    consumer.subscribe(["orders"])
    messages = [message for _ in range(2) if (message := consumer.poll(PATIENCE_S)) is not None]
    consumer.close()
    assert [message.error() is None for message in messages] == [False, True]


def test_throttle(broker: Asked) -> None:
    broker.post("recorded")
    broker.post("throttle", api="Produce", duration_ms=1, times=1)
    assert send(broker) is None
    assert broker.post("wait_request", api="Produce")["answer"]["throttle_time_ms"] == 1


def test_refuse(broker: Asked) -> None:
    number = broker.post("refuse", times=1)["fault"]
    assert send(broker, reconnect_backoff_ms=10) is None
    assert broker.get(f"faults/{number}")["hits"] == 1


def test_disks(broker: Asked) -> None:
    fault = broker.post("disk_full")["fault"]
    error = send(broker, message_timeout_ms=3_000)
    assert error is not None
    broker.delete(f"faults/{fault}")
    assert send(broker) is None
    assert broker.refused("POST", "disk_fails", node=99) == (400, f"{broker.name} has the node 1, not 99")
    assert send(broker) is None

    fault = broker.post("disk_fails", times=1)["fault"]
    error = send(broker, message_timeout_ms=3_000)
    assert error is not None
    assert broker.delete(f"faults/{fault}")["hits"] == 1
    refused = broker.control.ask("POST", f"/brokers/{broker.name}/produce", topic="orders", value="1")
    assert refused.content["kafka_error"] == "KAFKA_STORAGE_ERROR"  # for good
    broker.post("restart")
    assert send(broker) is None


def test_a_missing_leader_or_coordinator_is_an_error(broker: Asked) -> None:
    broker.post("recorded")
    away = broker.post("leader_away", topic="orders", partition=0)["fault"]
    sending = meanwhile(lambda: send(broker))
    broker.post("wait_request", api="Metadata", count=2)
    assert broker.post(f"faults/{away}/wait_hits", count=2)["hits"] >= 2
    broker.delete(f"faults/{away}")
    assert sending.result(PATIENCE_S) is None

    broker.post("coordinator_away", group="g")
    consumer = broker.consumer("g")
    consumer.subscribe(["orders"])
    assert consumer.poll(0.2) is None
    found = broker.post("wait_request", api="FindCoordinator")
    assert found["errors"] == ["COORDINATOR_NOT_AVAILABLE"]
    broker.delete("faults")
    assert consumer.poll(PATIENCE_S).value() == b"1"
    consumer.close()
    assert broker.refused("POST", "coordinator_away") == (
        400,
        "POST /brokers/{broker}/coordinator_away: the coordinator needs one name: pass group or transactional_id",
    )


# --- faults in the form of kcl fake ---------------------------------------------------------------


def test_rules_are_a_fault(broker: Asked) -> None:
    """Those of one request are one fault."""
    produce = {"keys": ["produce"], "topic": "orders", "error": "NOT_LEADER_OR_FOLLOWER", "count": 2}
    made = broker.post("faults", rules=[produce, {"keys": ["Fetch", "2"], "group": None, "error": 29}])
    assert (made["hits"], made["left"], made["rules"][0]) == (0, 3, produce)
    assert send(broker) is None
    assert broker.post(f"faults/{made['id']}/wait", hits=2, timeout="1m30s") == {"hits": 2}
    [listed] = broker.get("faults")["faults"]
    assert {name: listed[name] for name in made} == {**made, "hits": 2, "left": 1}
    broker.delete(f"faults/{made['id']}")
    assert broker.get("faults") == {"faults": []}


def test_rules_that_only_count(broker: Asked) -> None:
    made = broker.post("faults", rules=[{"observe": True, "keys": ["Produce"], "count": -1}])
    assert made["left"] == -1
    assert send(broker) is None
    assert broker.post(f"faults/{made['id']}/wait") == {"hits": 1}
    status, _ = broker.refused("POST", f"faults/{made['id']}/wait", hits=2, timeout="1ms")
    assert status == 504


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([], "rules of POST /brokers/{broker}/faults is to be a list of rules"),
        ([{"topc": "orders"}], "a rule has no field 'topc': did you mean topic?"),
        ([{"error": 29}, {"keys": ["nothing"]}], "Kafka has no API 'nothing'"),
        ([{"observe": True, "error": 29}], "a rule that only observes has no error"),
        ([{"keys": ["Heartbeat"], "topic": "t"}], "no request of Heartbeat has topic"),
        ([{"nodes": [7]}], "has the node 1, not 7"),
    ],
)
def test_rules_that_are_none(broker: Asked, rules: list[Any], told: str) -> None:
    status, error = broker.refused("POST", "faults", rules=rules)
    assert status == 400
    assert told in error
    assert broker.get("faults") == {"faults": []}


def test_main_need_not_be_named(control: ControlClient) -> None:
    """As where a process has one cluster: what names no broker is asked of main."""
    made = control.ask("POST", "/faults", rules=[{"keys": ["Produce"]}]).content
    assert control.ask("GET", "/faults").content == control.done("GET", "/brokers/main/faults")
    told = control.ask("POST", f"/faults/{made['id']}/wait", hits=5, timeout="1ms")
    assert told.status == 400
    assert "has 1 hits at most: do not wait for 5" in told.content["error"]
    assert control.ask("DELETE", "/faults").content == {"removed": 1}
    assert control.ask("POST", "/reset").content["name"] == "main"


# --- faults of whole things -----------------------------------------------------------------------


def test_groups(broker: Asked) -> None:
    send(broker)
    events: list[str] = []
    consumer = broker.consumer("g", heartbeat_interval_ms=50)
    consumer.subscribe(
        ["orders"],
        on_assign=lambda *_: events.append("assigned"),
        on_revoke=lambda *_: events.append("revoked"),
        on_lost=lambda *_: events.append("lost"),
    )
    message = consumer.poll(PATIENCE_S)
    assert message.value() == b"1"
    consumer.commit(message, asynchronous=False)
    group = broker.post("wait_group", group="g", members=1, timeout_ms=10_000)
    assert group["offsets"] == [{"topic": "orders", "partition": 0, "offset": 1}]
    assert broker.post("wait_group", group="g", lag=0)["lag"] == 0
    assert broker.post("expire_member", group="g") == {"members": [group["members"][0]["member_id"]]}
    while events != ["assigned", "lost", "assigned"]:
        consumer.poll(0.1)
    broker.post("rebalance", group="g")
    while events[3:] != ["revoked", "assigned"]:
        consumer.poll(0.1)
    broker.post("lose_offsets", group="g", topic="orders")
    assert broker.get("group", group="g")["offsets"] == []
    consumer.close()
    assert broker.post("wait_group", group="g", state="Empty")["members"] == []
    assert broker.refused("POST", "wait_group", group="g", state="Asleep")[0] == 400
    assert broker.refused("POST", "rebalance", group="nobody")[0] == 409


def test_transactions(broker: Asked) -> None:
    def begin() -> Producer:
        producer = broker.producer(transactional_id="tx")
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", "1")
        producer.flush()
        return producer

    fenced = begin()
    broker.post("fence_producer", transactional_id="tx")
    with pytest.raises(KafkaException, match="fenced"):
        fenced.commit_transaction(PATIENCE_S)
    aborted = begin()
    broker.post("abort_transaction", transactional_id="tx")
    with pytest.raises(KafkaException):
        aborted.commit_transaction(PATIENCE_S)
    assert broker.refused("POST", "abort_transaction", transactional_id="nobody")[0] == 409

    hanging = broker.post("hang_transaction", topic="orders")
    assert (hanging["hits"], hanging["matches"]) == (0, 0)
    assert hanging["description"] == "a transaction hangs in orders-0, 0 hits"
    send(broker, "after")
    assert values(broker) == []
    consumer = broker.consumer("g", isolation_level="read_committed")
    consumer.subscribe(["orders"])
    assert consumer.poll(0.1) is None
    waiting = meanwhile(lambda: broker.post(f"faults/{hanging['fault']}/wait_hits"))
    while not waiting.done():
        assert consumer.poll(0.1) is None
    consumer.close()
    broker.delete(f"faults/{hanging['fault']}")
    assert values(broker) == ["after"]
    broker.post("hang_transaction", topic="orders")
    send(broker, "after another")
    broker.delete("faults")
    assert values(broker) == ["after", "after another"]
    assert broker.get("faults") == {"faults": []}


# --- isolation and seeing -------------------------------------------------------------------------


def test_reset(broker: Asked) -> None:
    broker.post("fail", api="Produce", error="REQUEST_TIMED_OUT", times=1)
    broker.post("produce", topic="orders", value="1")
    broker.post("create_topic", name="others")
    for _ in range(2):
        assert broker.post("reset")["bootstrap_servers"] == broker.servers
        assert broker.get("topics") == {"topics": ["orders"]}
        assert broker.get("records", topic="orders")["count"] == 0
        assert broker.get("faults") == {"faults": []}
        broker.post("delete_topic", name="orders")


def test_snapshots(broker: Asked) -> None:
    send(broker, "before")
    taken = broker.post("snapshots")["snapshot"]
    for value in ("1", "2"):
        send(broker, value)
        assert values(broker) == ["before", value]
        broker.post(f"snapshots/{taken}/restore")
        assert values(broker) == ["before"]
    broker.post("pause")
    broker.post("snapshots")
    assert broker.get("faults") == {"faults": []}
    broker.post("hang_transaction", topic="orders")
    assert broker.refused("POST", "snapshots")[0] == 409
    broker.delete(f"snapshots/{taken}")
    assert broker.refused("POST", f"snapshots/{taken}/restore")[0] == 404


def test_recorded_requests_are_listed(broker: Asked) -> None:
    nothing = (409, f"nothing is recorded: POST /brokers/{broker.name}/recorded begins")
    for method, verb in (("GET", "requests"), ("POST", "wait_request"), ("GET", "chart"), ("GET", "chart.svg")):
        assert broker.refused(method, verb) == nothing
    broker.post("recorded")
    broker.post("fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
    producer = broker.producer()
    producer.produce("orders", b"\xff", key="k", headers={"h": "1"})
    assert producer.flush(PATIENCE_S) == 0

    answered = broker.post("wait_request", api="Produce", topic="orders", count=2)
    assert answered["outcome"] == "ok"
    found = broker.get("requests", api="Produce", topic=["orders", "others"], client_id="shop", partition=0)
    assert found["count"] == 2
    first, second = found["requests"]
    assert (first["errors"], second["errors"]) == (["NOT_LEADER_OR_FOLLOWER"], [])
    assert first["partitions"] == [{"topic": "orders", "partition": 0}]
    assert second["request"]["acks"] == -1
    [record] = second["request"]["topic_data"][0]["partition_data"][0]["records"]
    assert (record["key"], record["value"], record["value_base64"]) == ("k", None, "/w==")
    assert record["headers"] == [{"name": "h", "value": "1"}]
    assert second["answer"]["responses"][0]["partition_responses"][0]["base_offset"] == 0
    assert broker.get("requests", limit=1)["count"] > 2
    assert len(broker.get("requests", limit=1)["requests"]) == 1
    assert broker.get("requests", limit=0)["requests"] == []
    assert "NOT_LEADER_OR_FOLLOWER" in broker.get("chart")
    assert broker.get("chart.svg").startswith("<svg")

    status, error = broker.refused("POST", "wait_request", api="Produce", client_id="nobody", timeout_ms=1)
    assert (status, error.partition(";")[0]) == (504, "after 0.001 s there were not 1 such requests")

    null = Request(f"{broker.control.url}/brokers/{broker.name}/recorded", b"null", method="DELETE")
    null.add_header("Content-Type", "application/json")  # what some languages make of no fields
    with urlopen(null, timeout=PATIENCE_S) as response:
        assert response.status == 200
    send(broker)
    assert broker.get("requests", api="Produce")["count"] == 2
    broker.delete("recorded")
    status, error = broker.refused("POST", "wait_request", api="Produce", client_id="nobody")
    assert status == 409
    assert error.startswith("POST /brokers/{broker}/wait_request: there were not 1 such requests; the last ones: ")
    assert error.endswith("and no more can come: the recording has ended. Wait before that")


def test_records(broker: Asked) -> None:
    written = broker.post(
        "produce", topic="orders", value="hallo", key="de", headers={"h": "1"}, timestamp_ms=1_700_000_000_000
    )
    assert (written["partition"], written["offset"], written["timestamp_ms"]) == (0, 0, 1_700_000_000_000)
    broker.post("produce", topic="orders", value_base64="/w==", key_base64="aw==", partition=0)
    found = broker.post("wait_records", topic="orders", count=2)
    assert [record["key"] for record in found["records"]] == ["de", "k"]
    assert found["records"][0]["headers"] == [{"name": "h", "value": "1"}]
    assert found["records"][1]["value_base64"] == "/w=="
    assert broker.get("records", topic="orders", partition=0, limit=1)["count"] == 2
    assert broker.post("wait_silence", topic="orders", duration_ms=0, limit=1)["count"] == 2
    answer = broker.control.ask("POST", f"/brokers/{broker.name}/wait_records", topic="orders", count=3, timeout_ms=10)
    assert answer.status == 504
    assert answer.content["error"] == "after 0.01 s topic orders holds 2 records, not 3"
    assert "orders-0 has the offsets from 0 to before 2" in answer.content["report"]
    assert "orders-0 has the offsets" in broker.get("report")
    broker.post("delete_records", topic="orders", partition=0, offset=1)
    assert [record["offset"] for record in broker.get("records", topic="orders")["records"]] == [1]
    beyond = broker.control.ask("POST", f"/brokers/{broker.name}/delete_records", topic="orders", offset=3)
    assert (beyond.status, beyond.content["kafka_error"]) == (409, "OFFSET_OUT_OF_RANGE")
    broker.post("delete_records", topic="orders")
    assert broker.get("records", topic="orders")["count"] == 0
    broker.post("delete_topic", name="orders")
    assert broker.control.ask("GET", f"/brokers/{broker.name}/records", topic="orders").content["kafka_error"] == (
        "UNKNOWN_TOPIC_OR_PARTITION"
    )


def test_a_request_that_takes_too_long_is_an_error(broker: Asked) -> None:
    """As while a disk is full: the topic is to be made until it can be."""
    broker.post("disk_full")
    answer = broker.control.ask("POST", f"/brokers/{broker.name}/create_topic", name="t", timeout_ms=50)
    assert answer.status == 504
    assert (
        answer.content["error"] == "POST /brokers/{broker}/create_topic timed out: report has the state of the broker"
    )
    assert "<disk_full, " in answer.content["report"]
    assert broker.get("records", topic="orders", timeout_ms=30_000)["count"] == 0


def test_a_partition_that_is_not_there(broker: Asked) -> None:
    broker.post("create_topic", name="two", partitions=2)
    for fields, told in (
        ({"topic": "ordrs"}, "there is no topic ordrs"),
        ({"topic": "orders", "partition": 7}, "orders has partition 0 only, not 7"),
        ({"topic": "two", "partition": 2}, "two has the partitions 0 to 1, not 2"),
    ):
        answer = broker.control.ask("GET", f"/brokers/{broker.name}/leader", **fields)
        assert (answer.status, answer.content["error"]) == (409, f"UNKNOWN_TOPIC_OR_PARTITION: {told}")


# --- clusters -------------------------------------------------------------------------------------


def test_a_cluster(start: Callable[..., Asked]) -> None:
    cluster = start(brokers=3, racks=["a", "b", "c"])
    assert len(cluster.servers.split(",")) == 3
    cluster.post("create_topic", name="orders", partitions=1, replication_factor=3)
    cluster.post("wait_in_sync")
    assert cluster.get("controller")["node"] in range(3)
    leader = cluster.get("leader", topic="orders")["node"]
    other = (leader + 1) % 3
    cut = cluster.post("cut", one=leader, other=other)
    assert cut["description"].startswith(f"cut {leader} <-> {other}, ")
    assert cluster.post(f"faults/{cut['fault']}/wait_hits", count=2)["hits"] >= 2
    cluster.post("heal")
    assert cluster.get("faults") == {"faults": []}
    assert cluster.refused("GET", f"faults/{cut['fault']}")[0] == 404
    cluster.post("wait_in_sync")
    assert cluster.refused("POST", "cut", one=1, other=1)[0] == 400
    cluster.post("expire_session", node=leader)
    cluster.post("wait_in_sync")
    expired, leader = leader, cluster.get("leader", topic="orders")["node"]
    assert leader != expired
    other = 3 - expired - leader
    cluster.post("kill", node=leader)
    assert cluster.get("leader", topic="orders", partition=0)["node"] != leader
    assert send(cluster) is None
    assert cluster.post("start", node=leader)["nodes"][leader]["is_running"] is True
    cluster.post("wait_in_sync", timeout_ms=60_000)
    cluster.post("stop", node=other)
    held = f"faults/{cluster.post('hold', api='Produce')['fault']}/wait_held"
    waiting = meanwhile(lambda: cluster.refused("POST", held, timeout_ms=60_000))
    assert cluster.refused("POST", held, timeout_ms=1)[0] == 504
    assert cluster.refused("POST", "start", node=7)[0] == 404
    assert len(cluster.get("")["nodes"]) == 3
    cluster.delete()
    status, error = waiting.result(PATIENCE_S)
    if status != 404:  # of a thread that has come too late to find the cluster: nothing tells that it waits
        assert status == 409
        assert "the cluster stopped meanwhile" in error or "and no more can come" in error


def test_a_cluster_of_which_little_runs(start: Callable[..., Asked]) -> None:
    cluster = start(brokers=2, seed_topics={"orders": 1}, configs={"min.insync.replicas": 2})
    cluster.post("pause", node=cluster.get("leader", topic="orders")["node"])
    late = cluster.control.ask("POST", f"/brokers/{cluster.name}/produce", topic="orders", value="1", timeout_ms=50)
    assert late.status == 504
    assert "<pause (broker=" in late.content["report"]
    cluster.delete("faults")
    for node in range(2):
        cluster.post("kill", node=node)
    told = f'no broker of {cluster.name} runs: POST /brokers/{cluster.name}/start {{"node": 0}} starts one'
    for verb, fields in (("topics", {}), ("records", {"topic": "orders"})):
        assert cluster.refused("GET", verb, **fields) == (409, told)
    status, told = cluster.refused("POST", "create_topic", name="t")
    assert status == 409
    assert told.endswith("no broker of this cluster runs: POST start with a node starts one of them")


def test_verbs_of_a_single_broker_work_with_a_cluster(start: Callable[..., Asked]) -> None:
    cluster = start(brokers=3, seed_topics={"orders": 1}, configs={"num.partitions": 3})
    cluster.post("create_topic", name="configured")
    assert cluster.get("leader", topic="configured", partition=2)["node"] in range(3)
    cluster.post("delete_topic", name="configured")
    cluster.post("wait_in_sync")
    written = cluster.post("produce", topic="orders", value="1")
    assert send(cluster) is None
    assert cluster.post("wait_records", topic="orders", count=2)["records"][0]["value"] == "1"
    assert cluster.get("records", topic="orders")["count"] == 2
    assert cluster.get("topics")["topics"] == ["orders"]
    assert cluster.get("group", group="g")["state"] == "Dead"
    assert cluster.post("wait_group", group="g", state="Dead")["members"] == []
    first = cluster.post("snapshots")["snapshot"]
    cluster.post("delete_topic", name="orders")
    assert cluster.get("topics")["topics"] == []
    cluster.post(f"snapshots/{first}/restore")
    assert cluster.get("records", topic="orders")["records"][0]["offset"] == written["offset"]
    cluster.delete(f"snapshots/{first}")
    cluster.post("hold", api="Produce")
    cluster.post("reset")
    assert (cluster.get("topics")["topics"], cluster.get("faults")["faults"]) == (["orders"], [])
    assert cluster.get("records", topic="orders")["count"] == 0


def test_faults_of_whole_things(start: Callable[..., Asked]) -> None:
    cluster = start(brokers=3, seed_topics={"orders": 1})
    cluster.post("wait_in_sync")
    leader = cluster.get("leader", topic="orders")["node"]
    moved_to = cluster.post("move_leader", topic="orders")["node"]
    assert moved_to != leader
    assert cluster.post("move_leader", topic="orders", partition=0, to=leader) == {"node": leader}
    refused = cluster.control.ask("POST", f"/brokers/{cluster.name}/move_leader", topic="orders", to=7)
    assert (refused.status, refused.content["kafka_error"]) == (409, "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    epoch = cluster.post("raise_leader_epoch", topic="orders")["leader_epoch"]
    assert cluster.post("raise_leader_epoch", topic="orders", partition=0)["leader_epoch"] == epoch + 1
    offline = cluster.post("partition_offline", topic="orders")
    assert (offline["fault"], offline["description"], offline["hits"]) == (1, "orders-0 is offline, 0 hits", 0)
    assert send(cluster, **{"message.timeout.ms": 3_000}) is not None
    assert cluster.post("faults/1/wait_hits")["hits"] > 0
    cluster.delete("faults/1")
    assert send(cluster) is None
    cluster.post("partition_offline", topic="orders")
    cluster.delete("faults")
    assert send(cluster) is None
    paused = cluster.post("pause", node=leader)["fault"]
    assert send(cluster, **{"message.timeout.ms": 3_000}) is not None
    assert cluster.delete(f"faults/{paused}")["hits"] > 0
    slow = cluster.post("disk_slow", duration_ms=[1, 2], node=[0, 1, 2])["fault"]
    assert send(cluster) is None
    assert cluster.get(f"faults/{slow}")["hits"] > 0
    cluster.delete("faults")
    cluster.post("age_records", topic="orders", duration_ms=8 * 86_400_000, partition=0)
    assert cluster.get("records", topic="orders")["count"] == 0
    producer = cluster.producer(**{"transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    cluster.post("wait_in_sync")
    coordinator = cluster.get("coordinator", transactional_id="x")["node"]
    moved_to = cluster.post("move_coordinator", transactional_id="x")["node"]
    assert moved_to != coordinator
    assert cluster.get("coordinator", transactional_id="x", timeout_ms=10_000)["node"] == moved_to
    assert cluster.refused("POST", "move_coordinator")[0] == 400


def test_links_are_cut(start: Callable[..., Asked]) -> None:
    """A follower that does not reach its leader leaves the ISR, and one that its leader does not reach stays."""
    quick = {"replica.lag.time.max.ms": 500, "min.insync.replicas": 1}
    cluster = start(brokers=3, seed_topics={"orders": 1}, configs=quick)
    cluster.post("wait_in_sync")
    leader, controller = cluster.get("leader", topic="orders")["node"], cluster.get("controller")["node"]
    follower = min({0, 1, 2} - {leader, controller})  # the controller stores the ISR
    cut = cluster.post("cut", one=leader, other=follower, one_way=True)["fault"]
    cluster.post("produce", topic="orders", value="1")
    assert cluster.post("wait_in_sync") == {}
    cluster.delete(f"faults/{cut}")
    cut = cluster.post("cut", one=follower, other=leader, one_way=True)["fault"]
    cluster.post("produce", topic="orders", value="2")  # with acks=all: until the follower is out of the ISR
    isr = sorted({0, 1, 2} - {follower})
    # The controller answers the leader before it tells it, as all others, what clients are to know.
    given_up_at, error = perf_counter() + PATIENCE_S, ""
    while f"orders-0 at broker {leader}: leader {leader}, ISR {isr}" not in error:
        assert perf_counter() < given_up_at, error
        answer = cluster.control.ask("POST", f"/brokers/{cluster.name}/wait_in_sync", timeout_ms=1)
        error = answer.content.get("error", "")
    assert cluster.refused("POST", "wait_in_sync", timeout_ms=1)[0] == 504
    assert cluster.delete(f"faults/{cut}")["hits"] > 0
    cluster.post("wait_in_sync")
    assert cluster.post("wait_heard") == {}
    cluster.post("cut", one=follower, other=leader)
    cluster.delete("faults")
    cluster.post("wait_in_sync")


def test_numbers_are_of_each_broker_and_kind(broker: Asked, start: Callable[..., Asked]) -> None:
    other = start()
    for each in (broker, other):
        assert each.post("drop", api="CreateTopics")["fault"] == 1
        assert each.post("snapshots")["snapshot"] == 1
        assert each.post("drop", api="CreateTopics")["fault"] == 2
        assert each.post("snapshots")["snapshot"] == 2


def test_a_single_broker_has_all_roles(broker: Asked) -> None:
    broker.post("wait_in_sync")
    number = broker.get("controller")
    assert broker.get("leader", topic="orders") == number == {"node": broker.get("")["nodes"][0]["node"]}
    assert broker.get("coordinator", group="g") == broker.get("coordinator", transactional_id="x") == number
    assert broker.refused("GET", "coordinator") == (
        400,
        "GET /brokers/{broker}/coordinator: the coordinator needs one name: pass group or transactional_id",
    )


def test_verbs_for_one_broker_of_a_cluster_need_its_node(start: Callable[..., Asked]) -> None:
    cluster = start(brokers=2)
    for verb in ("kill", "start"):
        told = f"{cluster.name} is a cluster: say which of its brokers is meant, node 0 to 1"
        assert cluster.refused("POST", verb) == (400, told)
    cluster.post("kill", node=0)
    assert cluster.post("kill", node=1)["bootstrap_servers"] == ""
    assert cluster.post("restart")["bootstrap_servers"] == cluster.servers


def test_verbs_of_clusters_are_not_for_single_brokers(broker: Asked) -> None:
    assert broker.refused("POST", "heal") == (
        409,
        f'{broker.name} is a single broker: this is for clusters, POST /brokers {{"brokers": 3}}',
    )


# --- the vocabulary ------------------------------------------------------------------------------


OF_PYTHON = {
    "add", "clear", "forget", "of_state", "prepare_snapshot", "remove", "on_loop", "tell_loop", "wait", "wait_async",
    "is_of_another_process", "end_undone", "ended_in_test", "is_led",
}  # fmt: skip
"""Methods of Python that are paths of faults over HTTP, or that other methods need."""

FILES = ("test_control.py", "test_control_security.py", "test_kcl.py")
"""The files that try the verbs."""

OTHER_NAMES = {"duration": "duration_ms", "broker": "node"}


def test_python_and_http_have_the_same_verbs() -> None:
    """A method's argument is a field, except for functions of Python; the time limit is of HTTP alone."""
    methods = {name for name in dir(Faults) if not name.startswith("_")} - OF_PYTHON
    verbs = {
        verb.path.rpartition("/")[2]: {field.name for field in verb.fields if field.kind is not DEADLINE}
        for verb in VERBS
    }
    for name in sorted(methods):
        assert name in verbs, f"POST /brokers/{{broker}}/{name} is missing"
        taken = set(signature(getattr(Faults, name)).parameters) - {"self"}
        if "where" in taken:
            taken = taken - {"where"} | set(Matching.__annotations__) - {"predicate"}
        assert verbs[name] == {OTHER_NAMES.get(each, each) for each in taken}, name


# --- the description ------------------------------------------------------------------------------


def test_every_verb_is_described_and_tried(control: ControlClient) -> None:
    paths = control.document()["paths"]
    assert {(path, method.upper()) for path in paths for method in paths[path]} == {
        (verb.path, verb.method) for verb in VERBS
    }
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names)
    texts = [Path(__file__).with_name(name).read_text() for name in FILES]
    tried = {path.rpartition("/")[2] for text in texts for path in CALL.findall(text)}
    for verb in VERBS:
        last = verb.path.rpartition("/")[2]
        assert last.startswith("{") or last in tried, verb.name
