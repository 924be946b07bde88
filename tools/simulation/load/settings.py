"""Changes of `min.insync.replicas` in a simulated cluster while brokers fail: an operator changes that of a topic, of
one broker or of all brokers over the network, and edits the brokers' configuration files.

So the requirement for an acknowledgement changes during a run. A leader that was alone in an ISR, and could commit
alone, has records that no other replica has, whatever the config is when it is lost: `last_to_leave.py` of the
controller has to consider that, and `left_isr` to record it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.client.configs import BROKER, TOPIC, ConfigResource, alter_configs
from barnabas.broker.client.errors import BrokerUnavailable, ResponseError
from barnabas.broker.replication.partition import Partition
from barnabas.controller import znodes
from barnabas.controller.state import NOBODY, PartitionState
from barnabas.wire.errors import ErrorCode
from tools.simulation.cluster import Cluster, TopicPartition
from tools.simulation.load.clients import Worker
from tools.simulation.surroundings import MIN_INSYNC_REPLICAS

RUNS: Final = 0.7
"""The share of runs with changes."""

MEAN_S: Final = (1.0, 20.0)
"""The range of the mean time between changes."""

RAISED: Final = 0.7
"""The share of these runs in which the value is raised when a leader commits alone: the operator has noticed that
brokers are down.
"""

RAISED_S: Final = 1.0
"""The mean delay of that: the leader commits records before."""

FILES: Final = 0.1
"""The share of changes that edit the configuration files."""

LOOK_S: Final = 0.25
VALUES: Final = ("1", "1", "2", "2", None)
"""The new values; None deletes a config, so that a more general one applies."""

_CONFIGS: Final = f"{znodes.CONFIG}/"


class Settings:
    """The values in one run, in the metadata store and in the files."""

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self._cluster = cluster
        self._around = cluster.around
        self._draw = draw
        is_changed = len(cluster.brokers) > 1 and draw.random() < RUNS
        self.mean_s = draw.uniform(*MEAN_S) if is_changed else None
        """The mean time between changes; None for no changes."""
        self._is_raised = draw.random() < RAISED
        self._alone: tuple[TopicPartition, int] | None = None
        """A partition whose leader was left alone and commits alone, and that leader."""
        self._stored: dict[tuple[str, ...], dict[str, str]] = {}
        self._unheard: set[TopicPartition] = set()
        """Partitions whose leader was alone and has committed records before it learned that two replicas are required
        now. The state in the metadata store does not reveal that, as documented in `docs/durability/last-to-leave.md`.
        """

    def look(self, interval_s: float) -> None:
        """Called periodically: sometimes edits the files, which brokers read at their next start."""
        if self.mean_s is not None and self._draw.random() < FILES * interval_s / self.mean_s:
            self._edit_files("1" if self._around.configs[MIN_INSYNC_REPLICAS] == "2" else "2")

    def _edit_files(self, value: str) -> None:
        self._around.configs[MIN_INSYNC_REPLICAS] = value
        self._around.tell(f"files: {MIN_INSYNC_REPLICAS} is {value}")
        self._around.count("settings changed")

    def written(self, path: str, data: bytes) -> None:
        """A znode was written in the metadata store."""
        if path.startswith(_CONFIGS):
            kind, _, name = path.removeprefix(_CONFIGS).partition("/")
            if kind in ("topics", "brokers") and name:
                self._stored[kind, name] = znodes.decode_config(kind, name, data)

    def state_written(self, partition: TopicPartition, state: PartitionState) -> None:
        """A partition's state was written in the metadata store."""
        if len(state.isr) > 1 or state.last_to_leave == NOBODY:
            self._unheard.discard(partition)
        if self._is_raised and len(state.isr) == 1 and self._commits_alone(partition[0], state.isr[0]):
            self._alone = partition, state.isr[0]

    def to_be_raised(self) -> ConfigResource | None:
        """The resource whose config must be changed so that a leader that was left alone stops committing. None if
        there is none, or if the value is in the files, for its next start.
        """
        if self._alone is None:
            return None
        (topic, _), node_id = self._alone
        self._alone = None
        if self._value("topics", topic) is not None:
            return (TOPIC, topic)
        if self._value("brokers", str(node_id)) is not None:
            return (BROKER, str(node_id))
        if self._value("brokers", znodes.DEFAULT_ENTITY) is None and self._draw.random() < 0.5:
            self._edit_files("2")
            return None
        return (BROKER, "")

    def committed(self, partition: Partition, state: PartitionState | None) -> None:
        """A leader has committed records, by the value of `min.insync.replicas` that it knows."""
        if state is None or len(state.isr) > 1 or state.last_to_leave == NOBODY:
            return
        own = partition.log.config.min_insync_replicas
        if own < 2 and not self._commits_alone(partition.topic, state.isr[0]):
            self._around.count("unheard settings")
            self._unheard.add((partition.topic, partition.index))

    def _commits_alone(self, topic: str, node_id: int) -> bool:
        """Whether a broker may commit alone in a topic."""
        return (self._of(topic, node_id) or self._cluster.brokers[node_id].min_insync_replicas) == "1"

    def _will_commit_alone(self, topic: str, node_id: int) -> bool:
        """Whether it may do so after its next start. A controller decides by this when it learns of a loss."""
        return (self._of(topic, node_id) or self._around.configs[MIN_INSYNC_REPLICAS]) == "1"

    def _of(self, topic: str, node_id: int) -> str | None:
        """The config that overrides a broker's file; None if there is none."""
        return (
            self._value("topics", topic)
            or self._value("brokers", str(node_id))
            or self._value("brokers", znodes.DEFAULT_ENTITY)
        )

    def _value(self, *entity: str) -> str | None:
        return self._stored.get(entity, {}).get(MIN_INSYNC_REPLICAS)

    def with_all(self, partition: TopicPartition, state: PartitionState) -> tuple[int, ...]:
        """The replicas with all committed records: the members of the ISR, and also the last one that left it, if two
        replicas were required, and will be, while only one was in the ISR.
        """
        is_known = (
            state.last_to_leave != NOBODY
            and partition not in self._unheard
            and not any(self._will_commit_alone(partition[0], member) for member in state.isr)
        )
        return (*state.isr, state.last_to_leave) if is_known else state.isr


class Operator(Worker):
    """An operator that changes `min.insync.replicas` every `mean_s` seconds on average, or if it is `to_be_raised`."""

    def __init__(
        self, mean_s: float, brokers: int, to_be_raised: Callable[[], ConfigResource | None], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._mean_s = mean_s
        self._to_be_raised = to_be_raised
        resources: list[ConfigResource] = [(BROKER, str(node_id)) for node_id in range(brokers)]
        self._resources = [(TOPIC, self.topic), (BROKER, ""), (BROKER, ""), self.draw.choice(resources)]

    async def run_once(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.draw.uniform(0, 2 * self._mean_s)
        value = self.draw.choice(VALUES)
        resource = self.draw.choice(self._resources)
        while loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            raised = self._to_be_raised()
            if raised is not None:
                await self.pause(RAISED_S)
                resource, value = raised, "2"
                break
        kind, name = resource
        try:
            await alter_configs(
                self.client,
                kind,
                name,
                set_to={} if value is None else {MIN_INSYNC_REPLICAS: value},
                delete=[MIN_INSYNC_REPLICAS] if value is None else [],
            )
        except BrokerUnavailable:
            await self.positions.refresh([self.topic])  # the client does not know this topic: its leader is looked up
            raise
        except ResponseError as error:
            # A broker that has just started may not know the topic yet.
            if not error.error.retriable and error.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.recorder.wrong.append(f"{MIN_INSYNC_REPLICAS} cannot be altered: {error}")
            raise
        self.recorder.tell(f"{self.name}: {MIN_INSYNC_REPLICAS} of {name or 'all brokers'} is {value}")
        self.recorder.count("settings changed")
        self.done += 1
