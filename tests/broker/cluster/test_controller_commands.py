"""The commands of controllers that a broker obeys, and their order, over a whole broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.server import Broker
from barnabas.clock import SystemClock
from barnabas.controller import znodes
from barnabas.controller.controller_election import Elected
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.interface import StoreUnavailable
from barnabas.controller.requests import FULL
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.broker.running import ENVIRONMENT, running

OWN_ID: Final = 1
"""The controller, which lives in the broker that obeys."""
OTHER_CONTROLLER: Final = 7
TOPIC_ID: Final = bytes(range(16))

pytestmark = pytest.mark.anyio


async def answers(
    commands: ControllerCommands, controller_epoch: int, broker_epoch: int = -1, controller_id: int = OWN_ID
) -> list[ErrorCode]:
    """The errors of a command of each kind without content."""
    header: dict[str, Any] = {
        "controller_id": controller_id,
        "controller_epoch": controller_epoch,
        "broker_epoch": broker_epoch,
    }
    answered = (
        await commands.leader_and_isr(LeaderAndIsrRequest(**header)),
        await commands.update_metadata(UpdateMetadataRequest(**header)),
        await commands.stop_replica(StopReplicaRequest(**header)),
    )
    return [ErrorCode.of(answer.error_code) for answer in answered]


async def test_a_deposed_controller_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        epoch = broker.controller.epoch
        assert await answers(broker.commands, epoch - 1) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
        assert await answers(broker.commands, epoch) == [ErrorCode.NONE] * 3
        other = await answers(broker.commands, epoch, controller_id=OTHER_CONTROLLER)
        assert other == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3, "nobody else has that epoch"
        assert broker.metadata.controller_id == OWN_ID


async def test_a_controller_that_is_not_elected_is_refused(tmp_path: Path) -> None:
    """By the metadata store, which is asked for an epoch above the known one, and only then."""
    async with running(tmp_path) as broker:
        asked: list[Elected | Exception | None] = []

        async def elected() -> Elected | None:
            found = asked.pop()
            if isinstance(found, Exception):
                raise found
            return found

        gate = other_commands(broker, lambda: -1, broker.controller.registered, elected=elected)
        for found in (None, Elected(5, OTHER_CONTROLLER), StoreUnavailable("it is away")):
            asked.append(found)
            with pytest.raises(CloseConnection):
                await gate.update_metadata(UpdateMetadataRequest(controller_id=OTHER_CONTROLLER, controller_epoch=6))
        for found in (Elected(6, 8), Elected(7, None)):
            asked.append(found)
            answer = await gate.update_metadata(
                UpdateMetadataRequest(controller_id=OTHER_CONTROLLER, controller_epoch=6)
            )
            assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        asked.append(Elected(6, OTHER_CONTROLLER))
        assert await answers(gate, 6, controller_id=OTHER_CONTROLLER) == [ErrorCode.NONE] * 3


@pytest.mark.parametrize("kind", [LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest])
async def test_the_controller_epoch_counts_for_all_kinds_of_requests(tmp_path: Path, kind: type) -> None:
    async with running(tmp_path) as broker:
        commands, newer = broker.commands, broker.controller.epoch + 1
        tell = {
            LeaderAndIsrRequest: commands.leader_and_isr,
            UpdateMetadataRequest: commands.update_metadata,
            StopReplicaRequest: commands.stop_replica,
        }[kind]
        answer = await tell(kind(controller_id=OWN_ID, controller_epoch=newer))  # type: ignore[operator]
        assert answer.error_code == ErrorCode.NONE
        assert await answers(commands, newer - 1) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3


async def test_commands_for_an_earlier_registration_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        epoch, registration = broker.controller.epoch, broker.controller.broker_epoch
        assert await answers(broker.commands, epoch, registration - 1) == [ErrorCode.STALE_BROKER_EPOCH] * 3
        assert await answers(broker.commands, epoch + 1, registration - 1) == [ErrorCode.STALE_BROKER_EPOCH] * 3
        # What was refused has not made its controller known: the present one goes on.
        for known in (registration, registration + 1, -1):
            assert await answers(broker.commands, epoch, known) == [ErrorCode.NONE] * 3


async def test_commands_are_obeyed_one_after_the_other(tmp_path: Path) -> None:
    """A new controller waits for what the former has begun here; what the former has still to say is refused."""
    async with running(tmp_path) as broker:
        commands, epoch = broker.commands, broker.controller.epoch
        begun = asyncio.create_task(commands.leader_and_isr(leading("t", epoch)))
        newer = asyncio.create_task(
            commands.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, controller_epoch=epoch + 1))
        )
        late = asyncio.create_task(commands.leader_and_isr(leading("t", epoch)))
        assert (await newer).error_code == ErrorCode.NONE
        assert begun.done()
        assert (await begun).error_code == ErrorCode.NONE
        assert (await late).error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def leading(topic: str, controller_epoch: int, topic_id: bytes = TOPIC_ID) -> LeaderAndIsrRequest:
    """The broker of `running` is to lead partition 0 of a new topic."""
    state = LeaderAndIsrPartitionState(partition_index=0, leader=0, isr=[0], replicas=[0], is_new=True)
    return LeaderAndIsrRequest(
        controller_id=OWN_ID,
        controller_epoch=controller_epoch,
        topic_states=[LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state])],
    )


@asynccontextmanager
async def with_store(data_dir: Path) -> AsyncIterator[tuple[Broker, EmbeddedStore]]:
    """A broker, and the store that it shares with others."""
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    try:
        async with running(data_dir, replace(ENVIRONMENT, metadata_store=store)) as broker:
            yield broker, store
    finally:
        await store.close()


@pytest.mark.parametrize("teller", ["another broker", "this broker"])
async def test_a_log_is_made_with_the_settings_that_are_stored(tmp_path: Path, teller: str) -> None:
    """Those of a new topic come without a notification; with the defaults, retention would delete what must stay. A
    controller that lives here may have found the topic, as it became active or after a write without an answer.
    """
    async with with_store(tmp_path) as (broker, store):
        creator = await store.session()
        await creator.create(znodes.config_path("topics", "t"), znodes.encode_config({"retention.ms": "-1"}))
        command = leading("t", broker.controller.epoch)
        if teller == "this broker":
            answer = await LocalChannel(0, broker.commands).send(0, command)
        else:
            answer = await broker.commands.leader_and_isr(command)
        assert answer.topics[0].partition_errors[0].error_code == ErrorCode.NONE
        assert broker.replicas.partition_or_error("t", 0).log.config.retention_ms == -1
        await creator.close()


async def test_a_log_that_replaces_an_earlier_topics_has_new_configs(tmp_path: Path) -> None:
    async with with_store(tmp_path) as (broker, store):
        await broker.commands.leader_and_isr(leading("t", broker.controller.epoch))
        former = broker.replicas.partition_or_error("t", 0).log
        creator = await store.session()
        await creator.create(znodes.config_path("topics", "t"), znodes.encode_config({"retention.ms": "-1"}))
        another = bytes(reversed(TOPIC_ID))
        await broker.commands.leader_and_isr(leading("t", broker.controller.epoch, another))
        log = broker.replicas.partition_or_error("t", 0).log
        assert log is not former
        assert log.config.retention_ms == -1
        await creator.close()


async def test_a_log_whose_topic_left_the_store_is_set_aside(tmp_path: Path) -> None:
    """An operator may want back what retention would delete."""
    async with with_store(tmp_path) as (broker, store):
        topic = NewTopic("t", partition_count=1, replication_factor=1, configs={"retention.ms": "-1"})
        await broker.controller.create_topics([topic], validate_only=False, timeout_ms=30_000)
        await broker.stop()
        vandal = await store.session()
        partitions = f"{znodes.topic_path('t')}/partitions"
        for path in (f"{partitions}/0/state", f"{partitions}/0", partitions, znodes.topic_path("t")):
            await vandal.delete(path)
        await vandal.close()
        async with running(tmp_path, replace(ENVIRONMENT, metadata_store=store)) as again:
            assert again.log_manager.get("t", 0) is None
            (stray,) = [path for path in tmp_path.iterdir() if path.name.endswith("-stray")]  # noqa: ASYNC240
            assert (stray / "00000000000000000000.log").exists()


async def test_the_settings_of_a_topic_go_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        notifications = broker.configs.notifications
        last_change = notifications.last_change
        await broker.configs.change("topics", "t", lambda _overrides: {"retention.ms": "5"})
        while notifications.last_change == last_change:  # noqa: ASYNC110 - its own notification reads them once more
            await asyncio.sleep(0)
        await broker.configs.refresh("topics", ["t"])  # which comes after that
        for leader in (0, -2):  # -2: the topic is being deleted
            partition = UpdateMetadataPartitionState(partition_index=0, leader=leader, replicas=[0], isr=[0])
            topic = UpdateMetadataTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=[partition])
            assert broker.configs.overrides("topics", "t") == {"retention.ms": "5"}
            await broker.commands.update_metadata(
                UpdateMetadataRequest(
                    controller_id=OWN_ID, controller_epoch=broker.controller.epoch, topic_states=[topic]
                )
            )
        assert broker.configs.overrides("topics", "t") == {}


async def test_the_settings_of_topics_that_others_host_are_known(tmp_path: Path) -> None:
    """They come without a notification, and whoever asks this broker is told them."""
    async with with_store(tmp_path) as (broker, store):
        creator = await store.session()
        partition = UpdateMetadataPartitionState(partition_index=0, leader=7, replicas=[7], isr=[7])
        for topic_id, retention_ms in ((TOPIC_ID, "5"), (TOPIC_ID[::-1], "6")):  # a topic, and a later one of its name
            configs = znodes.encode_config({"retention.ms": retention_ms})
            path = znodes.config_path("topics", "t")
            if await creator.exists(path) is None:
                await creator.create(path, configs)
            else:
                await creator.set(path, configs)
            topic = UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=[partition])
            await broker.commands.update_metadata(
                UpdateMetadataRequest(
                    controller_id=OWN_ID, controller_epoch=broker.controller.epoch, topic_states=[topic]
                )
            )
            assert broker.configs.overrides("topics", "t") == {"retention.ms": retention_ms}
        partition.leader = -2
        for _ in range(2):  # its deletion is told again and again, and its settings are there until the end of it
            await broker.commands.update_metadata(
                UpdateMetadataRequest(
                    controller_id=OWN_ID, controller_epoch=broker.controller.epoch, topic_states=[topic]
                )
            )
            assert broker.configs.overrides("topics", "t") == {}
        await creator.close()


async def test_configs_of_topics_created_during_a_start_are_read(tmp_path: Path) -> None:
    """After it had read all settings, and before its first controller tells it of all topics."""
    async with with_store(tmp_path) as (broker, store):
        creator = await store.session()
        for name in ("found", "made"):
            await creator.create(znodes.config_path("topics", name), znodes.encode_config({"retention.ms": "5"}))
            if name == "found":
                await broker.configs.stop()
                await broker.configs.start()
        reads: list[str] = []
        get_many = broker.configs._store.get_many
        broker.configs._store.get_many = lambda paths, *rest: (reads.extend(paths), get_many(paths, *rest))[1]
        commands = other_commands(broker, lambda: -1, broker.controller.registered)
        partition = UpdateMetadataPartitionState(partition_index=0, leader=7, replicas=[7], isr=[7])
        topics = [
            UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=[partition])
            for name, topic_id in (("found", TOPIC_ID), ("made", TOPIC_ID[::-1]))
        ]
        told = UpdateMetadataRequest(type=FULL, controller_id=OWN_ID, controller_epoch=9, topic_states=topics)
        await commands.update_metadata(told)
        for name in ("found", "made"):
            assert broker.configs.overrides("topics", name) == {"retention.ms": "5"}
        assert reads == [znodes.config_path("topics", "made")], "what was read at the start is not read again"
        await creator.close()


def other_commands(
    broker: Broker,
    broker_epoch: Callable[[], int],
    registered: Callable[[], Awaitable[None]],
    on_update: Callable[[Any], Awaitable[None]] | None = None,
    elected: Callable[[], Awaitable[Elected | None]] | None = None,
) -> ControllerCommands:
    """The gate of a broker that has heard nothing yet."""
    updated = on_update or broker.internal_topics.metadata_updated

    return ControllerCommands(
        broker.node_id,
        broker.replicas,
        MetadataCache(),
        broker.configs,
        broker_epoch,
        updated,
        registered,
        elected or broker.controller.elected,
        broker.timers,
    )


async def test_commands_for_a_former_life_wait_for_the_registration(tmp_path: Path) -> None:
    """A broker that was killed and started again is known at its address, and told what it should do, before the
    controller has heard of its death."""
    async with running(tmp_path) as broker:
        epochs, is_registered = [-1], asyncio.Event()

        async def registered() -> None:
            await is_registered.wait()

        commands = other_commands(broker, lambda: epochs[-1], registered)
        told = [
            asyncio.create_task(
                commands.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, type=2, broker_epoch=epoch))
            )
            for epoch in (6, 7)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not commands.knows_everything.is_set()
        epochs.append(7)
        is_registered.set()
        assert [(await task).error_code for task in told] == [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NONE]
        assert commands.knows_everything.is_set()


async def test_a_broker_knows_when_it_was_told_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert broker.commands.knows_everything.is_set()
        commands = other_commands(broker, lambda: -1, broker.controller.registered)
        await commands.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, type=1))
        assert not commands.knows_everything.is_set()
        await commands.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, type=2))
        assert commands.knows_everything.is_set()


async def test_a_begun_command_outlives_its_connection(tmp_path: Path) -> None:
    """The connection cancels the task of what it has asked; a command that still waits goes with it."""
    async with running(tmp_path) as broker:
        begun, go_on = asyncio.Event(), asyncio.Event()
        seen: list[str] = []

        async def on_update(_removed: object) -> None:
            begun.set()
            await go_on.wait()
            seen.append("begun")

        gate = other_commands(broker, lambda: -1, broker.controller.registered, on_update)
        first = asyncio.create_task(
            gate.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, controller_epoch=1, type=2))
        )
        await begun.wait()
        dropped = asyncio.create_task(gate.leader_and_isr(leading("dropped", 1)))
        await asyncio.sleep(0)
        for task in (first, dropped):
            task.cancel()
        await asyncio.wait([first, dropped])
        last = asyncio.create_task(gate.leader_and_isr(leading("t", 1)))
        last.add_done_callback(lambda _last: seen.append("last"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not gate.knows_everything.is_set()
        go_on.set()
        assert (await last).error_code == ErrorCode.NONE
        assert gate.knows_everything.is_set(), "the command was done to its end"
        assert seen == ["begun", "last"]
        assert not broker.replicas.has_log("dropped", 0)


@pytest.mark.parametrize("error", [StoreUnavailable("it is away"), RuntimeError("nobody foresaw this")])
async def test_a_failed_command_without_a_connection_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with running(tmp_path) as broker:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def on_update(_removed: object) -> None:
            begun.set()
            await go_on.wait()
            raise error

        gate = other_commands(broker, lambda: -1, broker.controller.registered, on_update)
        lost = asyncio.create_task(
            gate.update_metadata(UpdateMetadataRequest(controller_id=OWN_ID, controller_epoch=1))
        )
        await begun.wait()
        lost.cancel()
        await asyncio.wait([lost])
        go_on.set()
        assert (
            await gate.stop_replica(StopReplicaRequest(controller_id=OWN_ID, controller_epoch=1))
        ).error_code == ErrorCode.NONE
        (told,) = [record for record in caplog.records if "failed after its connection broke" in record.message]
        assert str(error) in told.message
        assert bool(told.exc_info) is isinstance(error, RuntimeError)


@pytest.mark.slow
async def test_nothing_of_a_command_is_left_when_the_broker_stops(tmp_path: Path) -> None:
    """It has some time for its own end, which a thread of it may need."""
    async with running(tmp_path, replace(ENVIRONMENT, socket_clock=SystemClock())) as broker:
        begun = asyncio.Event()

        async def on_update(_removed: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        broker.commands._on_update = on_update
        request = UpdateMetadataRequest(controller_id=OWN_ID, controller_epoch=broker.controller.epoch)
        lost = asyncio.create_task(broker.commands.update_metadata(request))
        await begun.wait()
        lost.cancel()
        await asyncio.wait([lost])
        assert "command of the controller" in [task.get_name() for task in asyncio.all_tasks()]
        await broker.stop()
        assert "command of the controller" not in [task.get_name() for task in asyncio.all_tasks()]
