"""A broker's life inside a test: start, stop, restart, kill; threads, files and errors."""

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from barnabas.clock import ManualClock
from barnabas.testing import ApiError, Broker, ConfigError
from tests.support.reference_loop import assert_within, timed, work_s
from tools.processes import children
from tools.waiting import PATIENCE_S


def connects(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except ConnectionError:
        return False
    return True


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_with_block_is_a_brokers_life() -> None:
    before = threads()
    with Broker() as broker:
        data_dir, address = broker.data_dir, broker.bootstrap_servers
        assert broker.is_running
        assert connects(address)
        assert (data_dir / "metadata.sqlite").exists()
    assert not broker.is_running
    assert not connects(address)
    assert not data_dir.exists()
    assert threads() <= before, "a thread is left"


def test_an_async_with_block_stops_the_broker() -> None:
    async def live() -> None:
        async with Broker() as broker:
            address = broker.bootstrap_servers
            assert await asyncio.to_thread(connects, address)
        assert not await asyncio.to_thread(connects, address)

    asyncio.run(live())


@pytest.mark.full
@pytest.mark.alone
def test_a_warm_broker_is_ready_in_milliseconds() -> None:
    """Some 10 ms (benchmarks/embedding.py)."""

    def start_s() -> float:
        broker = Broker()
        try:
            return timed(broker.start)()
        finally:
            broker.stop()

    start_s()
    assert_within(6, work_s, start_s, "a start")


def test_a_client_finds_it() -> None:
    with Broker(num_partitions=3) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"v", b"k", headers={"h": b"1"})
        assert producer.flush(PATIENCE_S) == 0
        [record] = broker.topic("t").records()
        assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))
        assert broker.topic("t").partition_count == 3


def test_several_brokers_live_side_by_side() -> None:
    with Broker() as one, Broker() as other:
        one.create_topic("one").produce("1")
        other.create_topic("other").produce("2")
        assert (one.topic_names(), other.topic_names()) == (["one"], ["other"])
        assert one.bootstrap_servers != other.bootstrap_servers


def test_starting_twice_is_an_error_that_says_so() -> None:
    with Broker() as broker:
        with pytest.raises(RuntimeError, match=f"runs already, at {broker.bootstrap_servers}"):
            broker.start()
        assert connects(broker.bootstrap_servers)


def test_only_one_of_many_threads_starts_it() -> None:
    broker = Broker()
    outcomes: list[str] = []

    def start() -> None:
        try:
            broker.start()
            outcomes.append("started")
        except RuntimeError:
            outcomes.append("refused")

    starters = [threading.Thread(target=start) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    broker.stop()
    assert sorted(outcomes) == ["refused"] * 3 + ["started"]


def test_a_stopped_broker_starts_again_empty() -> None:
    broker = Broker()
    with broker:
        broker.create_topic("t")
    broker.stop()  # once more does nothing
    with broker:
        assert broker.topic_names() == []


def test_a_given_directory_keeps_the_data(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t").produce("v")
    with Broker(data_dir=tmp_path) as broker:
        assert [record.value for record in broker.topic("t").records()] == [b"v"]
    assert (tmp_path / "t-0").is_dir()


def test_the_directory_may_come_from_the_configuration(tmp_path: Path) -> None:
    with Broker(configs={"log.dir": tmp_path / "logs"}) as broker:
        broker.create_topic("t")
        assert broker.data_dir == tmp_path / "logs"
    assert (tmp_path / "logs" / "t-0").is_dir()


def test_a_restart_keeps_port_topics_records_and_offsets() -> None:
    with Broker() as broker:
        address = broker.bootstrap_servers
        broker.create_topic("t").produce("v")
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        [message] = consumer.consume(1, timeout=PATIENCE_S)
        assert message.value() == b"v"
        consumer.commit(message, asynchronous=False)
        consumer.close()

        broker.restart()

        assert broker.bootstrap_servers == address
        assert [record.value for record in broker.topic("t").records()] == [b"v"]
        assert broker.wait_group("g", "Empty").offsets == {("t", 0): 1}


@pytest.mark.parametrize(
    "configs",
    [
        {"listeners": "PLAINTEXT://localhost:0"},
        {
            "listeners": "PLAINTEXT://127.0.0.1:0, Other://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        },
        {"advertised.listeners": "PLAINTEXT://proxy.example:9"},
    ],
    ids=["one", "two", "advertised"],
)
def test_every_listener_keeps_its_port(configs: dict[str, object]) -> None:
    with Broker(configs=configs) as broker:
        address, ports = broker.bootstrap_servers, broker.server.socket_server.ports
        assert 0 not in ports.values()
        broker.restart()
        assert (broker.bootstrap_servers, broker.server.socket_server.ports) == (address, ports)
        broker.kill()
        broker.start()
        assert (broker.bootstrap_servers, broker.server.socket_server.ports) == (address, ports)
        assert all(connects(f"127.0.0.1:{port}") for port in ports.values())


@pytest.mark.slow
def test_a_producer_gets_over_a_kill_without_loss_or_duplicate() -> None:
    with Broker() as broker:
        topic = broker.create_topic("t")
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        for number in range(50):
            producer.produce("t", b"%d" % number)
        producer.poll(0.01)
        broker.kill()
        assert not connects(broker.bootstrap_servers)
        for number in range(50, 100):
            producer.produce("t", b"%d" % number)
        broker.start()
        assert producer.flush(PATIENCE_S) == 0
        assert [int(record.value or b"") for record in topic.records()] == list(range(100))


def test_a_kill_leaves_no_marker_of_a_clean_end_and_a_stop_does(tmp_path: Path) -> None:
    marker = tmp_path / ".kafka_cleanshutdown"
    broker = Broker(data_dir=tmp_path).start()
    broker.create_topic("t").produce("v")
    broker.kill()
    assert not marker.exists()
    broker.restart()
    assert [record.value for record in broker.topic("t").records()] == [b"v"]
    broker.stop()
    assert marker.exists()


def test_a_killed_broker_can_be_cleaned_up_without_a_start() -> None:
    before = threads()
    broker = Broker().start()
    data_dir = broker.data_dir
    broker.kill()
    assert data_dir.exists()
    broker.stop()
    assert not data_dir.exists()
    assert threads() <= before, "a thread is left"


def test_a_long_poll_does_not_hold_up_a_stop() -> None:
    """With a clock that stands still it has no end."""
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "fetch.wait.max.ms": 60_000,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )
        with broker.recorded() as recording:
            consumer.subscribe(["t"])
            while not [each for each in recording.requests("Fetch") if each.outcome == "waiting"]:
                consumer.poll(0.05)
        broker.stop()
        consumer.close()


def test_a_bad_configuration_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = threads()
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(num_partitions="many").start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="cannot listen"):
            Broker(listeners=f"PLAINTEXT://127.0.0.1:{port}").start()
    assert list(tmp_path.iterdir()) == []
    assert threads() <= before, "a thread is left"


def test_no_descriptor_stays_open() -> None:
    def cycle() -> None:
        with Broker() as broker:
            broker.create_topic("t", 3).produce("v")
            broker.kill()
            broker.start()

    cycle()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        cycle()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.slow
def test_a_broker_that_is_never_stopped_removes_its_directory() -> None:
    code = """
from barnabas.testing import Broker
broker = Broker().start()
broker.create_topic("t").produce("v")
print(broker.data_dir)
"""
    done = children.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()
    assert done.stderr == ""


FORKS = """
import os, signal, sys
from barnabas.testing import Broker, Cluster

def fork(broker):
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that hangs is an error, too
        assert broker.bootstrap_servers
        recording, fault = broker._last_recording, next(iter(broker.faults))
        for use in (
            broker.topic_names, broker.topic("t").records, broker.reset, broker.recorded, recording.stop,
            recording.requests, fault.remove, fault.release, fault.wait_hits, broker.faults.clear,
            lambda: broker.faults.fail("Produce", 6), lambda: broker.faults.leader_away("t"),
            lambda: broker.faults.hang_transaction("t"), lambda: broker.clock.advance(1_000_000),
        ):
            try:
                use()
            except RuntimeError as refused:
                assert "only the process that started it" in str(refused), refused
            else:
                os._exit(7)
        sys.exit()  # as programs end: `with` blocks are left, and what is registered with atexit runs
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def check(broker):
    broker.create_topic("t").produce("v")
    before = broker.clock.now_ms()
    with broker.faults.hold("Heartbeat"), broker.faults.hang_transaction("t", 0), broker.recorded():
        fork(broker)
        assert len(broker.faults) == 2
    assert len(broker.faults) == 0
    assert broker.clock.now_ms() < before + 900_000
    if isinstance(broker, Broker):
        broker.kill()
        broker.start()
    assert [record.value for record in broker.topic("t").records()] == [b"v"]

"""


@pytest.mark.parametrize(
    "use",
    ["with {}() as broker:\n    check(broker)", "broker = {}().start()\ncheck(broker)\nbroker.stop()"],
    ids=["with", "atexit"],
)
@pytest.mark.parametrize("kind", ["Broker", "Cluster"])
@pytest.mark.slow
def test_a_forked_child_leaves_the_broker_alone(use: str, kind: str) -> None:
    children.run([sys.executable, "-c", FORKS + use.format(kind)], check=True)


def test_topics_come_and_go_with_kafkas_errors() -> None:
    with Broker(num_partitions=2, auto_create_topics_enable=False) as broker:
        topic = broker.create_topic("t", configs={"retention.ms": 1000, "preallocate": False})
        assert topic.partition_count == 2
        with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
            broker.create_topic("t")
        with pytest.raises(ApiError, match="INVALID_CONFIG"):
            broker.create_topic("u", configs={"retention.ms": "long"})
        broker.delete_topic("t")
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            broker.delete_topic("t")
        for use in (topic.records, lambda: topic.produce("v"), lambda: topic.partition_count):
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                use()


def test_calls_into_the_broker_from_its_own_loop_are_refused() -> None:
    with Broker() as broker:

        async def inside() -> None:
            broker.topic_names()

        with pytest.raises(RuntimeError, match="own event loop"):
            broker.call(inside())


def test_producers_of_gone_brokers_do_not_disturb_a_broker() -> None:
    """A client of one broker that is gone does not disturb the next one."""
    with Broker() as first:
        errors: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": first.bootstrap_servers, "error_cb": errors.append, "log_level": 0})
        producer.produce("t", b"1")
        assert producer.flush(PATIENCE_S) == 0
    with Broker() as second:
        assert second.topic_names() == []


def test_a_misspelt_key_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="num.partition is not a configuration.*did you mean num.partitions"):
        Broker(num_partition=3).start().stop()
