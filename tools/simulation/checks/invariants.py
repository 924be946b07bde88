"""Invariants of a simulated cluster, which hold at every moment. They are checked against the metadata store and all
brokers' logs at once.

Clients notice a lost record only after the wrong broker has been elected. The invariants show at once that this could
happen:

- every replica in an ISR in the store has all records that were ever committed, and so may be elected;
- only one process of one broker leads in a leader epoch;
- a replaced controller stores nothing;
- a broker's metadata of a partition is not replaced by an older state;
- a complete transaction is open in no partition;
- in the end, leaders know the stored ISR, and logs have their topic's configs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakSet

from barnabas.broker.cluster.metadata import TRANSACTION_STATE_TOPIC
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.replication.partition import Partition
from barnabas.broker.server import Broker
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import Stat
from barnabas.controller.state import PartitionState
from tools.simulation.cluster import Cluster, TopicPartition
from tools.simulation.world.processes import Process, current_process

_STATE: Final = "/state"
_TOPIC: Final = znodes.topic_path("")


class Invariants:
    """Checks each write to the store, each commit of a leader, and everything when `look` is called.

    A broker that lacks records (`Cluster.lacking`) is not expected to have the committed ones. `committed` is called
    with the stored state when a leader has committed something.
    """

    def __init__(self, cluster: Cluster, committed: Callable[[Partition, PartitionState | None], None]) -> None:
        self._states = cluster.states
        self._topic_ids: dict[str, bytes | None] = {}
        """The ids of the topics in the store, or the last ones, by name."""
        self._running = cluster.running
        self._wrong = cluster.around.wrong
        self._lacking = cluster.lacking
        self._has_committed = committed
        self._committed: dict[tuple[TopicPartition, object], int] = {}
        """By partition and topic id: a deleted topic may have been created again under the same name."""
        self._leaders: dict[tuple[str, int, object, int], tuple[int, Process]] = {}
        self._controller_epoch = 0
        self._roles: dict[tuple[int, str, int, object], tuple[Process, tuple[int, int]]] = {}
        self._watched: WeakSet[Process] = WeakSet()
        """Processes whose metadata are checked after every command, too: an error that lasts a tenth of a second, until
        a command is retried, would otherwise be seen only by chance.
        """
        self._known: dict[tuple[int, str, int], tuple[Process, int]] = {}
        self.compacted: dict[tuple[str, int, bytes], int] = {}
        """The offset up to which any replica of a partition has been compacted, by topic id: a replica that started its
        log later has copied the compacted records.
        """

    def written(
        self, path: str, data: bytes, stat: Stat
    ) -> tuple[TopicPartition, PartitionState | None, PartitionState] | None:
        """A znode was written in the store. Returns a partition with its states before and after; None for other
        znodes.
        """
        if path == znodes.CONTROLLER_EPOCH:
            self._controller_epoch = znodes.decode_controller_epoch(data)
        if path.startswith(_TOPIC) and "/" not in path.removeprefix(_TOPIC):
            name = path.removeprefix(_TOPIC)
            self._topic_ids[name] = znodes.decode_topic(name, data).topic_id
        if not path.endswith(_STATE):
            return None
        *_, topic, _partitions, index, _state = path.split("/")
        key = (topic, int(index))
        before = self._states.get(key)
        state = self._states[key] = znodes.decode_partition_state(*key, data, stat.version)
        if state.controller_epoch != self._controller_epoch:
            self._wrong.append(
                f"{topic}-{index}: written by the controller of epoch {state.controller_epoch},"
                f" when there is one of epoch {self._controller_epoch}"
            )
        self._check_members(key)
        return key, before, state

    def look(self) -> None:
        """Check the leaders and their epochs, and that in-sync replicas have all committed records."""
        for node_id, running in enumerate(self._running()):
            if running is None:
                continue
            process, server = running
            for partition in server.replicas.partitions():
                self._note_compaction(partition)
                if not partition.state.is_leader:
                    continue
                partition.add_listener(self._moved)
                key = (partition.topic, partition.index, partition.log.topic_id, partition.state.leader_epoch)
                leader, life = self._leaders.setdefault(key, (node_id, process))
                if leader != node_id:
                    self._wrong.append(f"{key}: led by {node_id} and by {leader}")
                elif life is not process:
                    self._wrong.append(f"{key}: led by {node_id} in two of its lives")
            if process not in self._watched:
                self._watched.add(process)
                server.metadata.listeners[partial(self._check_metadata, node_id, process, server)] = None
            self._check_metadata(node_id, process, server)
            self._check_roles(node_id, process, server)
        for partition_id in self._states:
            self._check_members(partition_id)
        self._check_transactions()

    def _note_compaction(self, partition: Partition) -> None:
        log = partition.log
        if log.clean_offset:
            key = (log.topic, log.partition, bytes(log.topic_id))
            self.compacted[key] = max(self.compacted.get(key, 0), log.clean_offset)

    def _moved(self, partition: Partition) -> None:
        """Called when the state of a led partition changes: more records may be committed."""
        process = current_process()
        if not partition.state.is_leader or (process is not None and process.is_dead):
            return
        key = (partition.topic, partition.index)
        life = (key, partition.log.topic_id)
        if partition.log.high_watermark > self._committed.get(life, 0):
            self._committed[life] = partition.log.high_watermark
            self._has_committed(partition, self._states.get(key))
            self._check_members(key)

    def _check_members(self, key: TopicPartition) -> None:
        state, running = self._states.get(key), self._running()
        if state is None:
            return
        for member in state.isr:
            its = running[member]
            partition = None if its is None else its[1].replicas.partition(*key)
            if member in self._lacking:
                continue
            if partition is None or partition.log.topic_id != self._topic_ids[key[0]]:
                continue  # a log of an earlier topic of that name; the broker sets it aside once it knows the new topic
            committed = self._committed.get((key, partition.log.topic_id), 0)
            if partition.log.log_end_offset < committed:
                self._wrong.append(
                    f"{key[0]}-{key[1]}: broker {member} is in sync, and has {partition.log.log_end_offset} of"
                    f" {committed} records that were committed"
                )

    def _check_metadata(self, node_id: int, process: Process, server: Broker) -> None:
        """Check that a broker's metadata of a partition are never replaced by an older state."""
        for topic, index in self._states:
            found = server.metadata.partition(topic, index)
            if found is not None:
                name = (f"{topic} {server.metadata.topic_id(topic)!r}", index)  # topics share names
                before = self._known.get((node_id, *name))
                if before is not None and before[0] is process and found.partition_epoch < before[1]:
                    self._wrong.append(
                        f"{topic}-{index}: broker {node_id} knew it in partition epoch {before[1]}, and was told of"
                        f" {found.partition_epoch} afterwards"
                    )
                self._known[node_id, *name] = process, found.partition_epoch

    def _check_roles(self, node_id: int, process: Process, server: Broker) -> None:
        """Check that an older command does not revert a partition's role after AlterPartition."""
        for partition in server.replicas.partitions():
            state = partition.state
            key = (node_id, partition.topic, partition.index, partition.log.topic_id)
            epochs = (state.leader_epoch, state.partition_epoch)
            life, before = self._roles.get(key, (process, epochs))
            if life is process and epochs < before:
                self._wrong.append(
                    f"{partition.topic}-{partition.index}: broker {node_id} was in leader and partition epoch {before},"
                    f" and is in {epochs}"
                )
            self._roles[key] = process, epochs

    def _leads(self, node_id: int, server: Broker, key: TopicPartition) -> Partition | None:
        """A partition that a broker leads, according to both itself and the store."""
        state, partition = self._states.get(key), server.replicas.partition(*key)
        is_led = (
            state is not None
            and partition is not None
            and state.leader == node_id
            and partition.state.is_leader
            and partition.state.leader_epoch == state.leader_epoch
        )
        return partition if is_led else None

    def _check_transactions(self) -> None:
        """Check that a transaction that is complete for its coordinator is open in no partition."""
        complete: dict[int, str] = {}
        is_open: list[tuple[int, Partition]] = []
        for node_id, running in enumerate(self._running()):
            if running is None:
                continue
            server = running[1]
            for runner in server.transactions.runtime.runners():
                if self._leads(node_id, server, (TRANSACTION_STATE_TOPIC, runner.partition)) is not None:
                    for transaction in runner.shard.transactions.values():
                        if transaction.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
                            complete[transaction.producer_id] = transaction.transactional_id
            for hosted in server.replicas.partitions():
                partition = self._leads(node_id, server, (hosted.topic, hosted.index))
                producers = None if partition is None else partition.log.producers.state
                if partition is not None and producers is not None:
                    is_open += [(producer_id, partition) for producer_id in producers.ongoing.values()]
        for producer_id, partition in is_open:
            if producer_id in complete:
                self._wrong.append(
                    f"{partition}: the transaction of {complete[producer_id]} is complete, and open here"
                )

    def is_known(self) -> bool:
        """Whether every broker knows each of its partitions as it is in the store."""
        for running in self._running():
            if running is None:
                return False
            for partition in running[1].replicas.partitions():
                known, state = partition.state, self._states[partition.topic, partition.index]
                if (known.leader, known.leader_epoch) != (state.leader, state.leader_epoch):
                    return False
                if known.is_leader and (set(known.isr), known.partition_epoch) != (
                    set(state.isr),
                    state.partition_epoch,
                ):
                    return False
        return True

    def check_settings(self, topic: str, timestamp_type: str) -> None:
        """Whether all logs of a topic have the config with which it was created."""
        for node_id, running in enumerate(self._running()):
            for partition in () if running is None else running[1].replicas.partitions():
                found = partition.log.config.message_timestamp_type
                if partition.topic == topic and found != timestamp_type:
                    self._wrong.append(f"{partition}: broker {node_id} has {found} for {timestamp_type}")
