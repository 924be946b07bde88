"""One log, group, transaction, topic or job that raises what nobody foresaw, among good ones: the others go on, it is
told once, counted, and tried again when its time has come."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.cluster.broker_batches import BrokerBatches
from barnabas.broker.coordinators.groups.service import GroupRunner, GroupService
from barnabas.broker.coordinators.groups.shard import GroupShard
from barnabas.broker.coordinators.runtime import LOAD_RETRY_DELAY_MS_MAX
from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.broker.http.figures import take_snapshot
from barnabas.broker.replication.partition import Partition
from barnabas.broker.timers import Timers
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.upkeep.log_jobs import LogJobs
from barnabas.clock import ManualClock
from barnabas.controller.broker_queue import RETRY_DELAY_MS, Answer, BrokerQueue
from barnabas.controller.channel import Command
from barnabas.controller.operations.creation import CreateTopics
from barnabas.controller.requests import FULL, INCREMENTAL, VERSIONS
from barnabas.set_aside import SetAside
from barnabas.storage import log_directory, segment_removal
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_producers import LogProducers
from barnabas.storage.producer_state import VERIFICATIONS_OF_ALL_LOGS_MAX, ProducerState
from barnabas.storage.recovery import opening as opening_of_logs
from barnabas.testing import Broker
from barnabas.wire import codec
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.support.bugs import REASON, Bug
from tests.support.manual_timers import ManualTimers
from tools.waiting import PATIENCE_S


def is_bad_log(log: PartitionLog, *_: object) -> bool:
    return log.topic == "bad"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if REASON in record.getMessage()]


def set_aside(broker: Broker, activity: str) -> tuple[int, int]:
    """How many are set aside in an activity, as /metrics says, and how often one failed."""
    told = take_snapshot(broker.server.metric_sources()).set_aside
    figures = {found.activity: (found.count, found.failures) for found in told}
    return figures[activity]


async def _now(call: Callable[[], Any]) -> Any:
    return call()


def test_retention(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bug = Bug(monkeypatch, segment_removal, "delete_old_segments", is_bad_log)
    with Broker() as broker:
        # The bad one comes first, and last.
        names = ["a-good", "bad", "good"]
        for name in names:
            topic = broker.create_topic(name, configs={"retention.ms": 1000, "segment.bytes": 1000})
            for _ in range(4):
                topic.produce(b"x" * 400)
        broker.clock.advance(10 * 60_000)
        assert [len(broker.topic(name).records()) for name in names] == [0, 4, 0]
        assert set_aside(broker, "retention")[0] == 1
        for _ in range(3):
            broker.clock.advance(20 * 60_000)
        assert bug.tries == 4
        assert len(told(caplog)) == 1, told(caplog)
        bug.is_there = False
        broker.clock.advance(60 * 60_000)
        assert len(broker.topic("bad").records()) == 0
        assert set_aside(broker, "retention")[0] == 0


def test_flushing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bug = Bug(monkeypatch, PartitionLog, "prepare_flush", is_bad_log)
    with Broker() as broker:
        for name in ("a-good", "bad", "good"):
            broker.create_topic(name, configs={"flush.ms": 1000}).produce("x")
        broker.clock.advance(1 * 60_000)

        def unflushed() -> list[str]:
            logs = broker.server.log_manager.logs
            return [log.topic for log in logs if log.recovery_point < log.log_end_offset]

        assert broker.call(_now(unflushed)) == ["bad"]
        assert set_aside(broker, "flushing")[0] == 1
        assert len(told(caplog)) == 1, told(caplog)
        bug.is_there = False
        broker.clock.advance(3 * 60_000)
        assert broker.call(_now(unflushed)) == []
        assert set_aside(broker, "flushing")[0] == 0


def test_expiry_of_producers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def of_log(name: str) -> Callable[..., bool]:
        return lambda producers, *_: producers._local.directory.endswith(f"/{name}-0")

    bug = Bug(monkeypatch, LogProducers, "remove_expired", of_log("bad"))
    good = Bug(monkeypatch, LogProducers, "remove_expired", of_log("good"))
    good.is_there = False
    with Broker() as broker:
        for name in ("bad", "good"):
            broker.create_topic(name).produce("x")
        broker.clock.advance(11 * 60_000)
        assert bug.tries > 0
        assert good.tries > 0
        assert set_aside(broker, "expiring the producers")[0] == 1
        assert len(told(caplog)) == 1


def test_leaders(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bug = Bug(monkeypatch, Partition, "become_leader_or_follower", lambda partition, *_: partition.topic == "bad")
    with Broker() as broker:
        bug.is_there = False
        for name in ("bad", "good"):
            broker.create_topic(name).produce("x")
        bug.is_there = True
        broker.restart()
        broker.topic("good").produce("y")
        assert len(broker.topic("good").records()) == 2
        with pytest.raises(ApiError):
            broker.topic("bad").produce("y")
        bug.is_there = False
        broker.restart()
        broker.topic("bad").produce("y")
        assert len(broker.topic("bad").records()) == 2


def test_settings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker:
        for name in ("bad", "good"):
            broker.create_topic(name)
        Bug(monkeypatch, PartitionLog, "update_config", is_bad_log)
        broker.call(_now(broker.server.replicas.reconfigure_all))
        broker.call(broker.server.configs.change("topics", "good", lambda _: {"retention.ms": "7"}))
        log = broker.server.replicas.partition_or_error("good", 0).log
        assert log.config.retention_ms == 7
        assert set_aside(broker, "changing the settings")[0] == 1
        assert len(told(caplog)) == 1


def test_a_listener_of_configs(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker:
        configs = broker.server.configs
        broker.create_topic("bad")
        heard: list[str] = []

        def listener(_kind: str, name: str) -> None:
            if name == "bad":
                raise ValueError(REASON)
            heard.append(name)

        broker.call(_now(lambda: configs.subscribe(listener)))
        broker.create_topic("good")
        for name in ("bad", "good"):
            broker.call(configs.change("topics", name, lambda _: {"retention.ms": "7"}))
        assert heard == ["good"]
        assert len(told(caplog)) == 1


def test_opening_and_closing_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(data_dir=tmp_path) as broker:
        for name in ("a-good", "bad", "good"):
            broker.create_topic(name).produce("x")
        closing = Bug(monkeypatch, log_directory, "prepare_close", is_bad_log)
        opening = Bug(monkeypatch, opening_of_logs, "load_log", lambda _context, directory, *_: "/bad-" in directory)
        broker.restart()
        assert closing.tries == opening.tries == 1
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        for name in ("a-good", "good"):
            broker.topic(name).produce("y")
            assert len(broker.topic(name).records()) == 2
        closing.is_there = opening.is_there = False
        broker.restart()
        broker.topic("bad").produce("y")
        assert len(broker.topic("bad").records()) == 2
    assert "closing bad-0 failed" in caplog.text
    assert "opening" in caplog.text


def test_a_timer_of_a_group(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bug = Bug(
        monkeypatch,
        GroupShard,
        "decide",
        lambda _shard, event, *_: event.group_id == "bad" and type(event).__name__ == "TimerFired",
    )
    with Broker(configs={"offsets.topic.num.partitions": "1"}) as broker:
        join_all(broker, ["a-good", "bad", "good"])
        broker.clock.advance(2 * 60_000)
        states = {name: broker.group(name).state for name in ("a-good", "bad", "good")}
        assert states["a-good"] == states["good"] == "Empty"
        assert states["bad"] != "Empty"
        assert set_aside(broker, "timers of the group")[0] == 1
        assert len(told(caplog)) == 1
        bug.is_there = False
        broker.clock.advance(3 * 60_000)
        assert broker.group("bad").state == "Empty", "its session ended at last"
        assert set_aside(broker, "timers of the group")[0] == 0


def join_all(broker: Broker, names: list[str]) -> None:
    from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
    from tools.attack.hostile import ask, connect

    broker.call(_now(lambda: broker.server.auto_topics.create(["__consumer_offsets"])))
    with connect(broker.bootstrap_servers) as connection:
        for name in names:
            request = JoinGroupRequest(
                group_id=name,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            for _ in range(200):
                response = ask(connection, request, 3, JoinGroupResponse)
                if response.error_code == 0:
                    break
                assert response.error_code in (
                    ErrorCode.NOT_COORDINATOR,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
                broker.clock.advance(100)
            assert response.error_code == 0


def test_loading_a_shard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, not every second, and the others load."""
    with Broker(configs={"offsets.topic.num.partitions": "2"}) as broker:
        names = {broker.server.groups.runtime.partition_for(name): name for name in ("first", "third")}
        assert len(names) == 2
        join_all(broker, list(names.values()))
        bug = Bug(monkeypatch, GroupShard, "load", lambda _shard, chunk: names[0].encode() in bytes(chunk))
        broker.restart()
        for _ in range(5):
            broker.clock.advance(1_000)
        assert broker.server.groups.runtime.runner_at(0) is None
        assert broker.server.groups.runtime.runner_at(1) is not None
        assert len(told(caplog)) == 1
        assert set_aside(broker, "loading groups")[0] == 1
        bug.is_there = False
        broker.clock.advance(LOAD_RETRY_DELAY_MS_MAX)
        assert broker.server.groups.runtime.runner_at(0) is not None
        assert set_aside(broker, "loading groups")[0] == 0


def test_a_runner_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(configs={"offsets.topic.num.partitions": "2"}) as broker:
        names = {broker.server.groups.runtime.partition_for(name): name for name in ("a", "b", "c", "d")}
        join_all(broker, list(names.values()))
        Bug(monkeypatch, GroupRunner, "start", lambda runner: runner.partition == 0)
        broker.restart()
        join_all(broker, [names[1]])
        assert set_aside(broker, "loading groups")[0] == 1


@pytest.mark.parametrize("job", ["abort", "expire"])
def test_transactions(job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    del caplog
    with Broker(configs={"transaction.state.log.num.partitions": "2"}) as broker:
        ids = ["a", "bad", "c", "d"]
        begin_all(broker, ids)
        if job == "abort":
            Bug(monkeypatch, TransactionService, "producer", lambda _self, event: event.transactional_id == "bad")
            broker.clock.advance(2 * 60_000)
            open_ones = [name for name in ids if state_of(broker, name) == "Ongoing"]
            assert open_ones == ["bad"]
            assert set_aside(broker, "aborting the transaction")[0] == 1
        else:
            broker.clock.advance(2 * 60_000)
            partition = broker.server.transactions.runtime.partition_for("bad")
            Bug(monkeypatch, TransactionShard, "decide", lambda _shard, event, *_: "bad" in event[1])
            broker.clock.advance(8 * 86_400_000)
            left = {name for name in ids if state_of(broker, name) is not None}
            assert left == {name for name in ids if broker.server.transactions.runtime.partition_for(name) == partition}
            assert set_aside(broker, "expiring transactional ids")[0] == 1


@pytest.mark.parametrize("what", ["marker", "record"])
def test_the_end_of_a_transaction(what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """While the broker runs, and at a start, which finds all of them prepared."""
    from barnabas.broker.coordinators.transactions.events import MarkersWritten

    def is_bad(_self: object, first: object, *rest: object) -> bool:
        if what == "marker":
            return first == "bad"
        return isinstance(first, MarkersWritten) and first.transactional_id == "bad"

    owner, method = (LocalMarkers, "write") if what == "marker" else (TransactionShard, "decide")
    names = ["a", "bad", "c", "d"]
    with Broker(configs={"transaction.state.log.num.partitions": "1"}) as broker:
        bug = Bug(monkeypatch, owner, method, is_bad)
        for name in names:
            broker.create_topic(name, partitions=1)
        for name, producer in begin_all(broker, names, in_topics_of_their_own=True).items():
            producer.commit_transaction(PATIENCE_S)
            assert is_committed(broker, name) is (name != "bad")
        broker.clock.advance(3_000)
        assert set_aside(broker, "ending the transaction")[0] == 1
        assert len(told(caplog)) == 1
        broker.restart()
        broker.clock.advance(3_000)
        assert [name for name in names if not is_committed(broker, name)] == ["bad"]
        bug.is_there = False
        broker.clock.advance(3_000)
        assert all(is_committed(broker, name) for name in names)
        assert set_aside(broker, "ending the transaction")[0] == 0


def is_committed(broker: Broker, name: str) -> bool:
    return state_of(broker, name) == "CompleteCommit"


@pytest.mark.parametrize("when", ["a topic is deleted", "offsets expire", "a whole shard raises"])
def test_forgetting_offsets(when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The deletion ends, and that of the next topic, too; offsets of the other groups go."""
    names = ["a", "bad", "c"]
    with Broker(configs={"offsets.topic.num.partitions": "1"}) as broker:
        for topic in ("x", "y"):
            broker.create_topic(topic)
        for name in names:
            commit(broker, name, ["x"] if name == "bad" else ["x", "y"])
        if when == "a whole shard raises":
            Bug(monkeypatch, GroupService, "_tell_groups", lambda *_: True)
        else:
            kind = "ForgetTopics" if when == "a topic is deleted" else "ExpireOffsets"
            Bug(monkeypatch, GroupShard, "decide",
                  lambda _shard, event, *_: event.group_id == "bad" and type(event).__name__ == kind)  # fmt: skip
        if when == "offsets expire":
            broker.clock.advance(8 * 86_400_000)
        else:
            broker.delete_topic("x")
            broker.delete_topic("y")
        left = {name: sorted(topics) for name in names if (topics := broker.group(name).offsets)}
        if when == "a whole shard raises":
            assert set_aside(broker, "loading groups") == (1, 2)
        else:
            assert len(left) == 1, left
            assert "bad" in left
            assert set_aside(broker, "forgetting offsets of the group")[0] == 1
        assert len(told(caplog)) == 1


def commit(broker: Broker, group: str, topics: list[str]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0) for topic in topics], asynchronous=False)
    consumer.close()


def begin_all(broker: Broker, ids: list[str], *, in_topics_of_their_own: bool = False) -> dict[str, Any]:
    from confluent_kafka import Producer

    if not in_topics_of_their_own:
        broker.create_topic("t", partitions=1)
    producers = {}
    for name in ids:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": name,
                "transaction.timeout.ms": 60_000,
            }
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(name if in_topics_of_their_own else "t", b"x")
        producer.flush(PATIENCE_S)
        producers[name] = producer
    return producers


def state_of(broker: Broker, name: str) -> str | None:
    try:
        return broker.call(_now(lambda: broker.server.transactions.describe(name))).state.value  # type: ignore[no-any-return]
    except ApiError:
        return None


def test_a_job_that_fails_is_told_once_and_run_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        housekeeping = Housekeeping(timers, clock)
        runs = {"bad": 0, "good": 0, "bad task": 0}
        is_bad = True

        def job(name: str) -> None:
            runs[name] += 1
            if is_bad and name != "good":
                raise ValueError(REASON)

        async def task() -> None:
            job("bad task")

        housekeeping.every("bad", 1000, lambda: job("bad"))
        housekeeping.every("good", 1000, lambda: job("good"))
        housekeeping.every("bad task", 1000, task)
        for _ in range(10):
            clock.advance(1000)
            timers.fire_due()
            while running := housekeeping.running():
                await asyncio.wait(running)
        assert set(runs.values()) == {10}
        assert sorted(housekeeping.set_aside.members) == ["bad", "bad task"]
        assert len(told(caplog)) == 2
        is_bad = False
        clock.advance(1000)
        timers.fire_due()
        while running := housekeeping.running():
            await asyncio.wait(running)
        assert housekeeping.set_aside.members == []
        await housekeeping.close()
        timers.close()

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())


def test_a_part_that_does_not_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t").produce("x")
        Bug(monkeypatch, TransactionService, "stop", lambda _self: True)
        broker.restart()
        assert len(broker.topic("t").records()) == 1
        broker.stop()
    assert (tmp_path / ".kafka_cleanshutdown").exists(), "the logs were closed all the same"


def test_creating_topics(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bug = Bug(monkeypatch, CreateTopics, "__call__", lambda _self, topics, **_: topics[0].name == "bad")
    with Broker() as broker:
        auto_topics = broker.server.auto_topics

        async def create(name: str) -> None:
            auto_topics.create([name])
            await asyncio.wait(auto_topics._tasks)

        for _ in range(3):
            broker.call(create("bad"))
        assert bug.tries == 3
        assert set_aside(broker, "creating") == (1, 3)
        assert len(told(caplog)) == 1
        broker.call(create("good"))
        bug.is_there = False
        broker.call(create("bad"))
        assert {"bad", "good"} <= set(broker.topic_names())
        assert set_aside(broker, "creating") == (0, 3)


def test_batches_for_another_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[str]:
        sent, all_sent = list[str](), asyncio.Event()

        async def deliver(_broker_id: int, waiting: deque[str]) -> None:
            if waiting[0] == "bad":
                raise ValueError(REASON)
            if waiting[0] == "bad when taken":
                waiting.popleft()
                raise ValueError(REASON)
            sent.append(waiting.popleft())
            if not waiting:
                all_sent.set()

        batches = BrokerBatches[str]("Letters", deliver)
        for item in ("a", "bad", "b", "bad when taken", "c"):
            batches.add(2, item)
        await all_sent.wait()
        await batches.close()
        return sent

    assert asyncio.run(scenario()) == ["a", "b", "c"]
    assert caplog.text.count("Traceback") == 1


class Remembering:
    """The remembered producers, and the number of those that have to be forgotten."""

    def __init__(self, count: int) -> None:
        self.producers = range(count)
        self.asked = list[int]()
        self.verifications: dict[int, None] = {}
        self.is_bad = False

    def forget_oldest(self, count: int) -> None:
        self.asked.append(count)
        if self.is_bad:
            raise ValueError(REASON)


class Named(SimpleNamespace):
    """A log."""

    __hash__ = object.__hash__


def test_bounding_producers(caplog: pytest.LogCaptureFixture) -> None:
    clock, nobody = ManualClock(), cast("Any", None)
    states = [Remembering(60_000) for _ in range(3)]
    states[0].is_bad = True
    partitions = [SimpleNamespace(log=Named(producers=SimpleNamespace(state=state))) for state in states]
    replicas = cast("Any", SimpleNamespace(partitions=lambda: iter(partitions)))
    jobs = LogJobs(nobody, replicas, nobody, nobody, nobody, clock)
    jobs._bound_producers()
    assert [len(state.asked) for state in states] == [1, 1, 1]
    jobs._bound_producers()
    assert len(states[0].asked) == 1
    assert len(jobs.set_aside_bounds) == 1
    assert caplog.text.count("Traceback") == 1
    states[0].is_bad = False
    clock.advance(60_000)
    jobs._bound_producers()
    assert len(jobs.set_aside_bounds) == 0


@pytest.mark.slow
def test_producers_about_to_begin_a_transaction_are_bounded() -> None:
    states = [ProducerState() for _ in range(3)]
    for state, count in zip(states, (9_000, 9_500, 100), strict=True):
        for producer_id in range(count):
            state.begin_verification(producer_id, 0, 0, 0, bumps_epoch=False)
    # Twelve logs more of that size.
    states += [deepcopy(states[0]) for _ in range(12)]
    partitions = [SimpleNamespace(log=Named(producers=SimpleNamespace(state=state))) for state in states]
    nobody, replicas = cast("Any", None), cast("Any", SimpleNamespace(partitions=lambda: iter(partitions)))
    LogJobs(nobody, replicas, nobody, nobody, nobody, ManualClock())._bound_producers()
    counts = [len(state.verifications) for state in states]
    assert VERIFICATIONS_OF_ALL_LOGS_MAX - 15 <= sum(counts) <= VERIFICATIONS_OF_ALL_LOGS_MAX
    assert counts[2] == 100


class Channel:
    """The controller's way to a broker, in which commands of one kind raise."""

    def __init__(self) -> None:
        self.sent = list[Command]()
        self.is_bad = True

    def reaches(self, _broker_id: int) -> bool:
        return True

    async def send(self, _broker_id: int, command: Command) -> object:
        self.sent.append(command)
        if self.is_bad and isinstance(command, StopReplicaRequest):
            raise ValueError(REASON)
        return "done"


def test_telling_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    """A command that cannot be sent is sent again, since the next command counts on it; if the processing of a
    response, or a call after it, raises, the next ones are not affected."""

    async def scenario() -> None:
        answers, calls, timers = list[Command](), list[str](), ManualTimers()
        channel, aside = Channel(), SetAside[int]("telling brokers", ManualClock(), first_delay_ms=0)

        def answered(answer: Answer) -> None:
            answers.append(answer.command)
            if isinstance(answer.command, UpdateMetadataRequest):
                raise ValueError(REASON)

        def call() -> None:
            calls.append("bad")
            raise ValueError(REASON)

        queue = BrokerQueue(2, channel, timers, answered, aside, SetAside("telling", ManualClock()))
        for command in (UpdateMetadataRequest(), UpdateMetadataRequest(), LeaderAndIsrRequest()):
            queue.post(command)
        queue.when_answered(call)
        queue.post(LeaderAndIsrRequest())
        all_done = asyncio.Event()
        queue.when_answered(all_done.set)
        await all_done.wait()
        assert calls == ["bad"]
        assert len(answers) == 4
        assert aside.failures == 3
        assert aside.members == []
        queue.post(StopReplicaRequest())
        while len(channel.sent) < 8:
            timers.fire(RETRY_DELAY_MS)
            await asyncio.sleep(0)
        assert aside.members == [2]
        assert len(answers) == 4
        channel.is_bad = False
        while len(answers) < 5:
            timers.fire(RETRY_DELAY_MS)
            await asyncio.sleep(0)
        assert aside.members == []
        queue.close()
        await queue.closed()

    asyncio.run(scenario())
    assert len(told(caplog)) == 3  # the answers, the call, and the command


class Encoding(Channel):
    """The way to a broker that writes what it sends."""

    async def send(self, _broker_id: int, command: Command) -> object:
        codec.encoder(type(command), VERSIONS[type(command)])(command, [])
        self.sent.append(command)
        return "done"


def test_an_unsendable_state_does_not_hold_back_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Told once, counted, and heard of again when it can be sent."""

    def roles(leader: int) -> LeaderAndIsrRequest:
        return LeaderAndIsrRequest(
            type=FULL,
            topic_states=[
                LeaderAndIsrTopicState(topic_name=name, partition_states=[LeaderAndIsrPartitionState(leader=number)])
                for name, number in (("good", 1), ("bad", leader), ("other", 1))
            ],
        )

    def metadata() -> UpdateMetadataRequest:
        brokers = [UpdateMetadataBroker(id=1), UpdateMetadataBroker(id=2, rack="r" * 40_000)]
        return UpdateMetadataRequest(live_brokers=brokers, topic_states=[UpdateMetadataTopicState(topic_name="good")])

    async def scenario() -> None:
        answers, channel, aside = list[Answer](), Encoding(), SetAside[int]("telling brokers", ManualClock())
        unsendable = SetAside[tuple[int, str]]("telling", ManualClock(), first_delay_ms=0)
        queue = BrokerQueue(2, channel, ManualTimers(), answers.append, aside, unsendable)

        async def posted(*commands: Command) -> None:
            for command in commands:
                queue.post(command)
            all_done = asyncio.Event()
            queue.when_answered(all_done.set)
            await asyncio.wait_for(all_done.wait(), PATIENCE_S)

        await posted(roles(leader=2**31), metadata(), LeaderAndIsrRequest(controller_id=2**31), metadata())
        sent = channel.sent
        assert [type(command) for command in sent] == [
            LeaderAndIsrRequest,
            UpdateMetadataRequest,
            UpdateMetadataRequest,
        ]
        assert [topic.topic_name for topic in sent[0].topic_states] == ["good", "other"]
        assert sent[0].type == INCREMENTAL, "or the broker would set the log of the other topic aside"
        assert [broker.id for broker in sent[1].live_brokers] == [1]
        assert [answer.command for answer in answers] == sent, "answers are to what was asked"
        assert unsendable.members == [(2, "topic bad"), (2, "the whole"), (2, "broker 2")]
        assert unsendable.failures == 4
        assert aside.failures == 0
        await posted(roles(leader=1))
        assert channel.sent[-1].type == FULL
        assert (2, "topic bad") not in unsendable.members
        queue.close()
        await queue.closed()

    asyncio.run(scenario())
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3, "each is told once"


def test_every_component_that_sets_aside_is_in_the_metrics() -> None:
    """Also those of a broker that has never followed anybody before the page was made."""
    with Broker() as broker:
        sources = broker.server.metric_sources()
        before = {found.activity for found in take_snapshot(sources).set_aside}
        assert "fetching" not in before
        broker.call(_now(lambda: setattr(broker.server.replicas, "fetchers", broker.server.others.fetchers(
            broker.server.log_manager, broker.server.replicas.flusher.flush))))  # fmt: skip
        after = {found.activity for found in take_snapshot(sources).set_aside}
        assert after - before == {"fetching"}
        assert {
            "closing the connection", "hearing of the cluster", "looking at in-sync replicas", "bounding the producers",
            "telling brokers", "processing the responses of brokers",
        } < before  # fmt: skip
