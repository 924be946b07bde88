"""The controller with a recording broker: its writes, its requests, and its state after a crash at any step."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from barnabas.controller import znodes
from barnabas.controller.bootstrap import ClusterIdMismatch
from barnabas.controller.broker_queue import RETRY_DELAY_MS
from barnabas.controller.coordination.interface import CoordinationError, StoreUnavailable
from barnabas.controller.registration import BrokerIdInUse
from barnabas.controller.state import ReplicaAssignment
from barnabas.controller.topics import NewPartitions, NewTopic, TopicDefaults
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.controller.conftest import own_broker_obeys, told

Node = Any
"""A controller under test, see conftest.py."""


async def settled(node: Node) -> None:
    """Return when all earlier events, and the responses of the own broker, have been processed."""
    await own_broker_obeys(node.controller)


def errors(results: dict[str, ApiError | None]) -> dict[str, str]:
    return {name: error.error.name if error else "NONE" for name, error in results.items()}


# -- start


async def test_the_first_start(node: Node) -> None:
    async with node:
        controller = node.controller
        assert controller.is_active
        assert (controller.controller_id, controller.epoch) == (1, 1)
        assert len(controller.cluster_id) == 22
        tree = await node.tree()
        assert json.loads(tree["/brokers/ids/1"])["endpoints"] == ["PLAINTEXT://localhost:9092"]
        assert znodes.decode_controller(tree["/controller"]) == 1
        assert tree["/controller_epoch"] == b"1"
        assert znodes.decode_cluster_id(tree["/cluster/id"]) == controller.cluster_id
        assert set(znodes.PERSISTENT_PATHS) <= set(tree)
        _, stat = await node.session.get("/brokers/ids/1")
        assert controller.broker_epoch == stat.czxid
        (leader_and_isr,) = node.channel.take(LeaderAndIsrRequest)
        assert (leader_and_isr.topic_states, leader_and_isr.type) == ([], 2)
        (metadata,) = node.channel.take(UpdateMetadataRequest)
        assert metadata.controller_id == 1
        assert metadata.broker_epoch == leader_and_isr.broker_epoch == -1, "it is in no other life than the controller"
        (broker,) = metadata.live_brokers
        assert (broker.id, broker.rack) == (1, "r1")
        assert [(e.listener, e.host, e.port, e.security_protocol) for e in broker.endpoints] == [
            ("PLAINTEXT", "localhost", 9092, 0)
        ]


async def test_a_start_commits_little(node: Node) -> None:
    """Each commit is a disk flush, and the broker's start waits for it."""
    async with node:
        assert node.faults.effects <= 4 + 2
    node.faults.effects = 0
    await node.start()
    assert node.faults.effects == 2 + 2, "registration and election; nothing to elect"
    await node.stop()


async def test_epochs_grow_over_restarts(node: Node) -> None:
    async with node:
        first = (node.controller.epoch, node.controller.broker_epoch, node.controller.cluster_id)
        await node.restart()
        assert node.controller.epoch == first[0] + 1
        assert node.controller.broker_epoch > first[1]
        assert node.controller.cluster_id == first[2]


async def test_an_epoch_that_was_set_back_is_not_given_again(node: Node) -> None:
    """Brokers would take earlier requests for present ones."""
    async with node:
        for _ in range(3):
            await node.restart()
        epoch = node.controller.epoch
        await node.session.set("/controller_epoch", b"1")
        await node.controller._election.renew()
        assert node.controller.epoch == epoch + 1
        assert (await node.session.get("/controller_epoch"))[0] == str(epoch + 1).encode()


async def test_the_cluster_id_can_be_given_once(node: Node) -> None:
    node.settings = node.settings._replace(cluster_id="4BBVMnpWRYSSAAhuMDMC8g")
    async with node:
        assert node.controller.cluster_id == "4BBVMnpWRYSSAAhuMDMC8g"
    node.settings = node.settings._replace(cluster_id="another")
    with pytest.raises(ClusterIdMismatch, match="4BBVMnpWRYSSAAhuMDMC8g"):
        await node.start()
    await node.stop()


async def test_a_taken_broker_id(node: Node) -> None:
    async with node:
        other = type(node)(node.path, node.clock)
        other.store = node.store
        other.session = await node.store.session()
        other.make_controller(node.configs)
        with pytest.raises(BrokerIdInUse, match="a broker with id 1"):
            await other.controller.start()
        other.broker_id = 2
        other.make_controller(node.configs)
        await other.controller.start()
        assert not other.controller.is_active, "it stands by"
        await other.controller.stop()


# -- creation


async def test_create_a_topic(node: Node) -> None:
    async with node:
        node.channel.clear()
        new = NewTopic("t", partition_count=2, replication_factor=1, configs={"retention.ms": "1000"})
        (outcome,) = await node.controller.create_topics([new])
        assert (outcome.error, outcome.partition_count, outcome.replication_factor) == (ErrorCode.NONE, 2, 1)
        tree = await node.tree("/brokers/topics")
        topic = znodes.decode_topic("t", tree["/brokers/topics/t"])
        assert topic.topic_id == outcome.topic_id
        assert [assignment.replicas for assignment in topic.partitions.values()] == [(1,), (1,)]
        for partition in range(2):
            state = json.loads(tree[znodes.partition_state_path("t", partition)])
            assert state.pop("registrations_zxid") == node.controller.broker_epoch
            assert state == {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 1, "isr": [1]}
        assert node.configs.overrides("topics", "t") == {"retention.ms": "1000"}, "known before the broker is told"

        (request,) = node.channel.take(LeaderAndIsrRequest)
        (topic_state,) = request.topic_states
        assert (topic_state.topic_name, topic_state.topic_id) == ("t", outcome.topic_id)
        assert (request.controller_id, request.controller_epoch, request.type) == (1, 1, 1)
        assert [(leader.broker_id, leader.host_name, leader.port) for leader in request.live_leaders] == [
            (1, "localhost", 9092)
        ]
        for state in topic_state.partition_states:
            assert (state.leader, state.leader_epoch, state.isr, state.replicas) == (1, 0, [1], [1])
            assert (state.partition_epoch, state.controller_epoch, state.is_new) == (0, 1, True)
        (metadata,) = node.channel.take(UpdateMetadataRequest)
        assert set(told([metadata])) == {("t", 0), ("t", 1)}
        assert node.channel.sent == [request, metadata]


async def test_defaults(node: Node) -> None:
    node.settings = node.settings._replace(topic_defaults=TopicDefaults(3, 1))
    async with node:
        (outcome,) = await node.controller.create_topics([NewTopic("t")])
        assert (outcome.partition_count, outcome.replication_factor) == (3, 1)


async def test_good_and_bad_topics_in_one_request(node: Node) -> None:
    async with node:
        outcomes = await node.controller.create_topics(
            [NewTopic("good"), NewTopic("bad name"), NewTopic("twice"), NewTopic("twice"), NewTopic("also-good")]
        )
        assert [(o.name, o.error.name) for o in outcomes] == [
            ("good", "NONE"),
            ("bad name", "INVALID_TOPIC_EXCEPTION"),
            ("also-good", "NONE"),
            ("twice", "INVALID_REQUEST"),
        ]
        assert set(node.controller.cluster.topics) == {"good", "also-good"}


async def test_validate_only(node: Node) -> None:
    async with node:
        node.channel.clear()
        before = await node.tree()
        outcomes = await node.controller.create_topics([NewTopic("t", 3)], validate_only=True, timeout_ms=0)
        assert [(o.error, o.partition_count) for o in outcomes] == [(ErrorCode.NONE, 3)]
        assert await node.controller.create_partitions([NewPartitions("t", 3)], validate_only=True)
        assert await node.tree() == before
        assert node.channel.sent == []


async def test_a_leftover_config_is_overwritten(node: Node) -> None:
    """Kafka writes a topic's config first: it may have died before the assignment."""
    async with node:
        await node.session.create("/config/topics/t", znodes.encode_config({"retention.ms": "5"}))
        (outcome,) = await node.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.NONE
        assert node.configs.overrides("topics", "t") == {}


async def test_a_thousand_partitions_take_few_transactions(node: Node) -> None:
    async with node:
        node.faults.effects = 0
        outcomes = await node.controller.create_topics([NewTopic(f"t{i}", 100) for i in range(10)])
        assert {outcome.error for outcome in outcomes} == {ErrorCode.NONE}
        assert node.faults.effects <= 3, "transactions and requests"
        await node.restart()
        node.faults.effects = 0
        assert set(errors(await node.controller.delete_topics([f"t{i}" for i in range(10)])).values()) == {"NONE"}
        assert node.faults.effects <= 5
        assert await node.tree("/brokers/topics") == {}


# -- expansion


async def test_add_partitions(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 2)])
        node.channel.clear()
        results = await node.controller.create_partitions(
            [NewPartitions("t", 4), NewPartitions("u", 4), NewPartitions("d", 1), NewPartitions("d", 2)]
        )
        assert errors(results) == {"d": "INVALID_REQUEST", "t": "NONE", "u": "UNKNOWN_TOPIC_OR_PARTITION"}
        (request,) = node.channel.take(LeaderAndIsrRequest)
        assert set(told([request])) == {("t", 2), ("t", 3)}
        assert set(told(node.channel.take(UpdateMetadataRequest))) == {("t", 2), ("t", 3)}
        data, stat = await node.session.get("/brokers/topics/t")
        assert list(znodes.decode_topic("t", data).partitions) == [0, 1, 2, 3]
        assert stat.version == 1
        await node.restart()
        assert len(node.controller.cluster.topics["t"].partitions) == 4


# -- deletion


async def test_delete_a_topic(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 2, configs={"retention.ms": "1"}), NewTopic("other")])
        node.channel.clear()
        results = await node.controller.delete_topics(["t", "unknown"])
        assert errors(results) == {"t": "NONE", "unknown": "UNKNOWN_TOPIC_OR_PARTITION"}
        metadata, stop = node.channel.sent
        assert isinstance(metadata, UpdateMetadataRequest)
        assert {state.leader for state in told([metadata]).values()} == {-2}
        assert isinstance(stop, StopReplicaRequest)
        stopped = told([stop])
        assert set(stopped) == {("t", 0), ("t", 1)}
        assert {(state.delete_partition, state.leader_epoch) for state in stopped.values()} == {(True, -2)}
        tree = await node.tree()
        assert [path for path in tree if "/t" in path.replace("/topics", "")] == []
        assert await node.tree("/admin/delete_topics") == {}
        assert node.configs.overrides("topics", "t") == {}
        assert set(node.controller.cluster.topics) == {"other"}


async def test_a_recreated_topic_is_another_one(node: Node) -> None:
    async with node:
        (old,) = await node.controller.create_topics([NewTopic("t", configs={"retention.ms": "1"})])
        await node.restart()
        assert told(node.channel.take(LeaderAndIsrRequest))["t", 0].leader_epoch == 1
        await node.controller.delete_topics(["t"])
        node.channel.clear()
        (new,) = await node.controller.create_topics([NewTopic("t")])
        assert new.error is ErrorCode.NONE
        assert new.topic_id != old.topic_id
        assert told(node.channel.take(LeaderAndIsrRequest))["t", 0].leader_epoch == 0
        assert node.configs.overrides("topics", "t") == {}


async def test_delete_by_id_means_that_topic_only(node: Node) -> None:
    async with node:
        (outcome,) = await node.controller.create_topics([NewTopic("t")])
        results = await node.controller.delete_topics(["t"], topic_ids={"t": bytes(16)})
        assert errors(results) == {"t": "UNKNOWN_TOPIC_ID"}
        results = await node.controller.delete_topics(["t"], topic_ids={"t": outcome.topic_id})
        assert errors(results) == {"t": "NONE"}


async def test_deletion_can_be_disabled(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t")])
        node.settings = node.settings._replace(delete_topic_enable=False)
        await node.restart({"/admin/delete_topics/t": b""})
        assert await node.tree("/admin/delete_topics") == {}
        assert errors(await node.controller.delete_topics(["t"])) == {"t": "TOPIC_DELETION_DISABLED"}
        assert set(node.controller.cluster.topics) == {"t"}


async def test_a_replica_that_cannot_be_deleted_keeps_the_topic_queued(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 2), NewTopic("u")])
        node.channel.errors["t", 1] = ErrorCode.KAFKA_STORAGE_ERROR
        results = await node.controller.delete_topics(["t", "u"])
        assert errors(results) == {"t": "KAFKA_STORAGE_ERROR", "u": "NONE"}
        assert set(await node.tree("/admin/delete_topics")) == {"/admin/delete_topics/t"}
        (again,) = await node.controller.create_topics([NewTopic("t")])
        assert again.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert errors(await node.controller.create_partitions([NewPartitions("t", 9)])) == {
            "t": "UNKNOWN_TOPIC_OR_PARTITION"
        }
        node.channel.errors.clear()
        assert errors(await node.controller.delete_topics(["t"])) == {"t": "NONE"}
        assert node.controller.cluster.topics == {}


async def test_a_topic_on_another_broker_waits_for_it(node: Node) -> None:
    async with node:
        topic = znodes.encode_topic(bytes(15) + b"\7", {0: ReplicaAssignment((9,))})
        await node.session.create("/brokers/topics/far", topic)
        await node.restart()
        assert errors(await node.controller.delete_topics(["far"])) == {"far": "NONE"}, "nobody sees it any more"
        assert set(await node.tree("/admin/delete_topics")) == {"/admin/delete_topics/far"}


# -- restart


@pytest.mark.parametrize("level", ["topic", "broker", "next start"])
async def test_a_partition_of_dead_brokers_is_leaderless(node: Node, level: str) -> None:
    """It gets a leader once its topic allows unclean elections."""
    async with node:
        await node.restart(
            {
                "/brokers/topics/t": znodes.encode_topic(bytes(15) + b"\7", {0: ReplicaAssignment((9, 1))}),
                "/brokers/topics/t/partitions": b"",
                "/brokers/topics/t/partitions/0": b"",
                "/brokers/topics/t/partitions/0/state": (
                    b'{"version":1,"leader":9,"leader_epoch":3,"controller_epoch":1,"isr":[9]}'
                ),
            }
        )
        metadata = told(node.channel.take(UpdateMetadataRequest))["t", 0]
        assert (metadata.leader, metadata.leader_epoch, metadata.isr, metadata.offline_replicas) == (-1, 4, [9], [9])
        node.channel.clear()
        node.controller.set_unclean_leader_election_enable(False)
        await node.configs.change("topics", "t", lambda _: {"retention.ms": "1"})
        await settled(node)
        assert not node.channel.take(LeaderAndIsrRequest)
        if level == "topic":
            await node.configs.change("topics", "t", lambda _: {"unclean.leader.election.enable": "true"})
        elif level == "broker":
            node.controller.set_unclean_leader_election_enable(True)
        else:
            node.settings = node.settings._replace(unclean_leader_election_enable=True)
            await node.restart()
        await settled(node)
        told_now = told(node.channel.take(LeaderAndIsrRequest))["t", 0]
        assert (told_now.leader, told_now.leader_epoch, told_now.isr) == (1, 5, [1])
        assert told_now.leader_recovery_state == 1


# -- failing brokers and stores


async def fire_retry(node: Node) -> None:
    """Have the controller retry refused requests, and wait until it has done so."""
    (timer,) = [timer for timer in node.timers.waiting if timer.delay_ms < 30_000]
    timer.cancel()
    timer.callback()
    await settled(node)


async def test_a_replica_is_offline_until_its_log_opens(node: Node) -> None:
    """The broker may have descriptors or space again later. The controller retries, and the client waits for that."""
    async with node:
        node.channel.clear()
        node.channel.errors["t", 1] = ErrorCode.KAFKA_STORAGE_ERROR
        creating = asyncio.ensure_future(node.controller.create_topics([NewTopic("t", 2)]))
        await node.timers.has(1_000)
        await settled(node)
        assert not creating.done()
        states = told(node.channel.take(UpdateMetadataRequest))
        assert (states["t", 0].leader, states["t", 0].offline_replicas) == (1, [])
        assert (states["t", 1].leader, states["t", 1].offline_replicas, states["t", 1].isr) == (-1, [1], [1])
        written = await node.tree("/brokers/topics")
        for delay_ms in (2_000, 4_000):
            await fire_retry(node)
            await node.timers.has(delay_ms)
        assert await node.tree("/brokers/topics") == written, "a try that fails writes nothing"
        assert not creating.done()
        node.channel.errors.clear()
        node.channel.clear()
        await fire_retry(node)
        assert (await creating)[0].error is ErrorCode.NONE
        state = told(node.channel.take(UpdateMetadataRequest))["t", 1]
        assert (state.leader, state.offline_replicas) == (1, [])
        assert not node.timers.waiting
        assert node.controller.cluster.topics["t"].partitions[1].leader_epoch == 2


async def test_a_creation_that_no_broker_serves_in_time_is_answered_so(node: Node) -> None:
    async with node:
        node.channel.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
        creating = asyncio.ensure_future(node.controller.create_topics([NewTopic("t")], timeout_ms=40_000))
        await node.timers.has(1_000)
        (timer,) = [timer for timer in node.timers.waiting if timer.delay_ms == 40_000]
        timer.callback()
        assert (await creating)[0].error is ErrorCode.REQUEST_TIMED_OUT
        node.channel.errors.clear()
        await fire_retry(node)
        assert node.controller.cluster.topics["t"].partitions[0].leader == 1
        await node.controller.delete_topics(["t"])


@pytest.mark.parametrize("refusal", ["all", "one"])
async def test_a_deletion_that_a_broker_refuses_is_told_and_made_later(node: Node, refusal: str) -> None:
    """Also with an error of the whole StopReplica response: the deletion may not be on the disk."""
    async with node:
        await node.controller.create_topics([NewTopic("t")])
        if refusal == "all":
            node.channel.stop_error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            node.channel.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
        results = await node.controller.delete_topics(["t"])
        error = results["t"]
        assert error is not None
        assert error.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "/brokers/topics/t" in await node.tree()
        assert "/admin/delete_topics/t" in await node.tree()
        node.channel.stop_error = ErrorCode.NONE
        node.channel.errors.clear()
        await fire_retry(node)
        assert "/brokers/topics/t" not in await node.tree()
        assert "/admin/delete_topics/t" not in await node.tree()
        assert not node.timers.waiting


async def test_other_refusals_are_only_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with node:
        node.channel.errors["t", 0] = ErrorCode.STALE_CONTROLLER_EPOCH
        await node.controller.create_topics([NewTopic("t")])
        assert "STALE_CONTROLLER_EPOCH" in caplog.text
        assert node.controller.cluster.topics["t"].partitions[0].leader == 1


async def test_a_partition_whose_log_is_another_topics_has_no_leader(node: Node) -> None:
    async with node:
        node.channel.errors["t", 0] = ErrorCode.INCONSISTENT_TOPIC_ID
        (outcome,) = await node.controller.create_topics([NewTopic("t")], timeout_ms=0)
        assert outcome.error is ErrorCode.REQUEST_TIMED_OUT
        await settled(node)
        assert node.controller.cluster.topics["t"].partitions[0].leader == -1


async def test_a_write_that_fails_is_reported_and_forgotten(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("before")])
        counted = node.session.multi

        async def full(_operations: object) -> Any:
            node.session.multi = counted
            raise StoreUnavailable("metadata.sqlite", "no space left")

        node.session.multi = full
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            await node.controller.create_topics([NewTopic("t")])
        assert node.controller.is_active
        assert set(node.controller.cluster.topics) == {"before"}
        (outcome,) = await node.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.NONE


async def test_configs_and_producer_ids_that_cannot_be_written(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t")])

        node.connection.refusal = StoreUnavailable("metadata.sqlite", "no space left")
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            await node.configs.change("topics", "t", lambda _: {"retention.ms": "7"})
        with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await node.controller.allocate_producer_ids()
        node.connection.refusal = None
        assert node.configs.overrides("topics", "t") == {}
        await node.configs.change("topics", "t", lambda _: {"retention.ms": "7"})
        assert await node.controller.allocate_producer_ids() == (0, 999)


async def test_a_failing_channel_does_not_stop_the_controller(node: Node) -> None:
    async with node:
        node.channel.failure = CoordinationError("the configs of t cannot be read")
        creating = asyncio.ensure_future(node.controller.create_topics([NewTopic("t")]))
        await node.timers.has(RETRY_DELAY_MS)
        node.channel.clear()
        also_creating = asyncio.ensure_future(node.controller.create_topics([NewTopic("u")]))
        await asyncio.sleep(0)
        assert errors(await node.controller.delete_topics(["nobody"])) == {"nobody": "UNKNOWN_TOPIC_OR_PARTITION"}
        assert "u" in node.controller.cluster.topics, "its broker delays no decision"
        node.timers.fire(RETRY_DELAY_MS)
        assert [(await each)[0].error for each in (creating, also_creating)] == [ErrorCode.NONE, ErrorCode.NONE]
        first, second = node.channel.take(LeaderAndIsrRequest)
        assert [set(told([first])), set(told([second]))] == [{("t", 0)}, {("u", 0)}], "told again, and in order"


# -- time


async def test_a_slow_broker_times_the_request_out_but_not_the_work(node: Node) -> None:
    async with node:
        node.channel.is_open.clear()
        node.channel.arrived.clear()
        request = asyncio.ensure_future(node.controller.create_topics([NewTopic("t"), NewTopic("!")], timeout_ms=500))
        queued = asyncio.ensure_future(node.controller.delete_topics(["t"], 700))
        await node.channel.arrived.wait()
        assert sorted(timer.delay_ms for timer in node.timers.waiting) == [500, 700]
        node.timers.fire()
        assert [(o.name, o.error.name) for o in await request] == [
            ("t", "REQUEST_TIMED_OUT"),
            ("!", "INVALID_TOPIC_EXCEPTION"),
        ]
        assert errors(await queued) == {"t": "REQUEST_TIMED_OUT"}
        node.channel.is_open.set()
        await settled(node)
        assert errors(await node.controller.delete_topics(["t"])) == {"t": "UNKNOWN_TOPIC_OR_PARTITION"}, "it is done"
        assert node.timers.waiting == []


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_timeout_of_zero_does_not_wait(node: Node, timeout_ms: int) -> None:
    async with node:
        node.channel.is_open.clear()
        outcomes = await node.controller.create_topics([NewTopic("t"), NewTopic("!")], timeout_ms=timeout_ms)
        assert [(o.name, o.error.name) for o in outcomes] == [
            ("t", "REQUEST_TIMED_OUT"),
            ("!", "INVALID_TOPIC_EXCEPTION"),
        ]
        node.channel.is_open.set()
        expanded = await node.controller.create_partitions([NewPartitions("t", 2)], timeout_ms=timeout_ms)
        assert errors(expanded) == {"t": "REQUEST_TIMED_OUT"}
        deleted = await node.controller.delete_topics(["t"], timeout_ms)
        assert errors(deleted) == {"t": "REQUEST_TIMED_OUT"}
        await settled(node)
        assert errors(await node.controller.delete_topics(["t"])) == {"t": "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_stopping_refuses_what_waits(node: Node) -> None:
    async with node:
        node.channel.is_open.clear()
        running = asyncio.ensure_future(node.controller.create_topics([NewTopic("t")]))
        waiting = asyncio.ensure_future(node.controller.create_topics([NewTopic("u")]))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(node.controller.stop())
        await asyncio.sleep(0)
        node.channel.is_open.set()
        await stopping
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [isinstance(result, ApiError) for result in results].count(True) >= 1
        assert "u" not in node.controller.cluster.topics


# -- producer ids


async def test_producer_id_blocks(node: Node) -> None:
    async with node:
        assert await node.controller.allocate_producer_ids() == (0, 999)
        assert await node.controller.allocate_producer_ids() == (1000, 1999)
        stored = json.loads((await node.session.get("/latest_producer_id_block"))[0])
        assert stored == {"version": 1, "broker": 1, "block_start": "1000", "block_end": "1999"}
        blocks = await asyncio.gather(*(node.controller.allocate_producer_ids() for _ in range(5)))
        assert sorted(blocks) == [(first, first + 999) for first in range(2000, 7000, 1000)]
        await node.restart()
        assert await node.controller.allocate_producer_ids() == (7000, 7999)
        exhausted = znodes.encode_producer_id_block(znodes.ProducerIdBlock(1, 2**63 - 1000, 2**63 - 1))
        await node.session.set("/latest_producer_id_block", exhausted)
        with pytest.raises(ApiError):
            await node.controller.allocate_producer_ids()


# -- death at every step


async def die_at_each_step(
    node: Node, act: Callable[[Node], Coroutine[Any, Any, object]], check: Callable[[Node], Awaitable[None]]
) -> None:
    """Crash the controller before each of its effects in turn, restart it, and check the state."""
    async with node:
        await node.controller.create_topics([NewTopic("t", 3, configs={"retention.ms": "1"}), NewTopic("kept")])
    fatal = 1
    while True:
        await node.start()
        before = node.faults.effects
        node.faults.fatal = before + fatal
        died = not await node.faults.survives(act(node))
        await node.crash()
        node.channel.clear()
        await node.start()
        await check(node)
        assert node.configs.overrides("topics", "kept") == {}
        assert "kept" in node.controller.cluster.topics
        await node.stop()
        if not died:
            return
        fatal += 1
        await node.start()
        await node.controller.delete_topics(list(set(node.controller.cluster.topics) - {"kept"}))
        await node.controller.create_topics([NewTopic("t", 3, configs={"retention.ms": "1"})])
        await node.stop()


async def assert_sound(node: Node) -> None:
    """Check that each partition has a leader, in the store and in the requests to the broker, and that no znode is left
    over."""
    tree = await node.tree()
    names = [path.rsplit("/", 1)[1] for path in tree if path.startswith("/brokers/topics/") and path.count("/") == 3]
    assert sorted(names) == sorted(node.controller.cluster.topics)
    assert await node.tree("/admin/delete_topics") == {}
    configured = {path.rsplit("/", 1)[1] for path in await node.tree("/config/topics")}
    assert configured == set(names)
    states = told(node.channel.take(LeaderAndIsrRequest))
    for name in names:
        for partition in znodes.decode_topic(name, tree[znodes.topic_path(name)]).partitions:
            stored = json.loads(tree[znodes.partition_state_path(name, partition)])
            assert stored["leader"] == 1
            assert states[name, partition].leader_epoch == stored["leader_epoch"]


@pytest.mark.slow
@pytest.mark.parametrize("transaction_bytes", [1, 512 * 1024])
async def test_deletion_survives_death(node: Node, transaction_bytes: int) -> None:
    node.settings = node.settings._replace(transaction_bytes_max=transaction_bytes)
    queued = []

    async def act(node: Node) -> None:
        await node.controller.delete_topics(["t"])

    async def check(node: Node) -> None:
        await assert_sound(node)
        queued.append("t" not in node.controller.cluster.topics)

    await die_at_each_step(node, act, check)
    assert queued == [False] + [True] * (len(queued) - 1), "once queued it always ends"
    assert len(queued) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("transaction_bytes", [1, 512 * 1024])
async def test_creation_survives_death(node: Node, transaction_bytes: int) -> None:
    node.settings = node.settings._replace(transaction_bytes_max=transaction_bytes)
    created = []

    async def act(node: Node) -> None:
        await node.controller.create_topics([NewTopic("new", 3, configs={"retention.ms": "9"})])

    async def check(node: Node) -> None:
        await assert_sound(node)
        created.append("new" in node.controller.cluster.topics)
        if created[-1]:
            assert node.configs.overrides("topics", "new") == {"retention.ms": "9"}
            assert len(node.controller.cluster.topics["new"].partitions) == 3

    await die_at_each_step(node, act, check)
    assert created == [False] + [True] * (len(created) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("transaction_bytes", [1, 512 * 1024])
async def test_expansion_survives_death(node: Node, transaction_bytes: int) -> None:
    node.settings = node.settings._replace(transaction_bytes_max=transaction_bytes)
    counts = []

    async def act(node: Node) -> None:
        await node.controller.create_partitions([NewPartitions("t", 6)])

    async def check(node: Node) -> None:
        await assert_sound(node)
        counts.append(len(node.controller.cluster.topics["t"].partitions))

    await die_at_each_step(node, act, check)
    assert counts == [3] + [6] * (len(counts) - 1)


async def test_start_survives_death(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 3)])
        await node.session.create("/admin/delete_topics/t")
        await node.controller.create_topics([NewTopic("kept", 2)])
    for fatal in range(1, 20):
        node.faults.fatal = node.faults.effects + fatal
        died = not await node.faults.survives(node.start())
        await node.crash()
        if not died:
            break
    assert fatal > 5
    node.channel.clear()
    async with node:
        assert set(node.controller.cluster.topics) == {"kept"}
        states = told(node.channel.take(LeaderAndIsrRequest))
        assert set(states) == {("kept", 0), ("kept", 1)}


# -- the own broker's answers


async def test_a_stop_has_the_broker_told_of_all_that_was_decided(node: Node) -> None:
    """Including requests that wait behind a slow one: with that request the offsets of the groups of a deleted topic
    are deleted."""
    await node.start()
    await node.controller.create_topics([NewTopic("t")])
    node.channel.is_open.clear()
    node.channel.arrived.clear()
    await node.controller.create_topics([NewTopic("u")], timeout_ms=0)
    await node.controller.delete_topics(["t"], 0)
    await node.channel.arrived.wait()
    node.channel.clear()
    stopping = asyncio.ensure_future(node.stop())
    await settled(node)
    assert not stopping.done()
    node.channel.is_open.set()
    await stopping
    metadata = told(node.channel.take(UpdateMetadataRequest))
    assert {key: state.leader for key, state in metadata.items()} == {("u", 0): 1, ("t", 0): -2}
    assert node.channel.take(StopReplicaRequest)


async def test_a_stop_does_not_wait_for_what_fails(node: Node) -> None:
    await node.start()
    node.channel.failure = CoordinationError("the configs of t cannot be read")
    await node.controller.create_topics([NewTopic("t")], timeout_ms=0)
    await node.timers.has(RETRY_DELAY_MS)
    await node.stop()


async def test_a_start_says_what_its_broker_fails_at(node: Node) -> None:
    node.channel.failure = KeyError("nobody foresaw this")
    with pytest.raises(KeyError, match="nobody foresaw this"):
        await node.start()
    await node.stop()


async def test_a_deletion_is_answered_after_a_take_over(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t")])
        node.connection.break_at("multi", "before", znodes.topic_path("t"))
        assert errors(await node.controller.delete_topics(["t"])) == {"t": "NONE"}
        assert node.connection.is_over


async def test_a_deletion_that_a_stop_interrupts_is_answered(node: Node) -> None:
    await node.start()
    await node.controller.create_topics([NewTopic("t")])
    node.channel.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    node.channel.is_open.clear()
    node.channel.arrived.clear()
    deletion = asyncio.ensure_future(node.controller.delete_topics(["t"]))
    await node.channel.arrived.wait()
    stopping = asyncio.ensure_future(node.stop())
    await settled(node)
    node.channel.is_open.set()
    await stopping
    assert errors(await deletion) == {"t": "NONE"}  # it is in the queue of whoever controls the cluster next


@pytest.mark.parametrize("refused", ["a creation", "a deletion"])
async def test_the_next_refusal_is_asked_about_soon(node: Node, refused: str) -> None:
    async with node:
        if refused == "a deletion":
            await node.controller.create_topics([NewTopic("t")])
        node.channel.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
        if refused == "a deletion":
            await node.controller.delete_topics(["t"])
        else:
            await node.controller.create_topics([NewTopic("t")], timeout_ms=0)
            await settled(node)
        for _ in range(4):
            await fire_retry(node)
        node.channel.errors.clear()
        if refused == "a creation":
            await node.controller.delete_topics(["t"])
        await fire_retry(node)
        assert "t" not in node.controller.cluster.topics
        node.channel.errors["u", 0] = ErrorCode.KAFKA_STORAGE_ERROR
        await node.controller.create_topics([NewTopic("u")], timeout_ms=0)
        await settled(node)
        assert [timer.delay_ms for timer in node.timers.waiting] == [1_000]


async def test_a_refusal_whose_write_fails_is_not_taken_for_a_service(node: Node) -> None:
    async with node:
        node.channel.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
        multi, writes = node.session.multi, list[object]()

        async def third_write_fails(operations: Any) -> Any:
            writes.append(operations)
            if len(writes) == 2:
                raise StoreUnavailable("metadata.sqlite", "no space left")
            return await multi(operations)

        node.session.multi = third_write_fails
        creating = asyncio.ensure_future(node.controller.create_topics([NewTopic("t")]))
        await node.timers.has(1_000)
        await settled(node)
        assert not creating.done(), "nobody serves it"
        node.channel.errors.clear()
        await fire_retry(node)
        assert (await creating)[0].error is ErrorCode.NONE


async def test_a_controller_without_its_broker_answers_so(node: Node) -> None:
    async with node:
        node.controller.context.brokers.part_from([1])
        [outcome] = await node.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.NONE  # it is written, and another controller will tell of it
