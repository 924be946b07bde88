"""Ends prepared transactions: writes their markers into their partitions, and has each recorded as complete when all
markers are written. Failed writes are repeated until they succeed, or a newer producer or coordinator has taken over.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.broker.coordinators.runner import ShardRunner
from barnabas.broker.coordinators.transactions.events import Event, MarkersWritten, Reply
from barnabas.broker.coordinators.transactions.markers import SUPERSEDED, MarkerWriter, TransactionMarker
from barnabas.broker.coordinators.transactions.retries import MARKERS_PER_TURN, Retries
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.broker.coordinators.transactions.state import TopicPartition
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


class TransactionRunner(ShardRunner[TransactionShard, Event, Reply]):
    """Runs one partition of `__transaction_state`."""


class _Ending:
    """A prepared transaction whose markers are being written: the partitions to write, the number of markers not yet
    committed, and the partitions with markers that the shard does not know of yet. After a failure `waits` means that
    the rest will be tried again later.
    """

    __slots__ = ("_marker", "in_flight", "runner", "todo", "transactional_id", "waits", "was_told", "written")

    def __init__(self, runner: TransactionRunner, transactional_id: str) -> None:
        transaction = runner.shard.transactions[transactional_id]
        self.runner = runner
        self.transactional_id = transactional_id
        self._marker = TransactionMarker(
            transaction.producer_id,
            transaction.producer_epoch,
            runner.leader_epoch(),
            transaction.state.is_commit,
            transaction.client_version,
        )
        self.todo = deque(sorted(transaction.partitions))
        self.in_flight = 0
        self.written: set[TopicPartition] = set()
        self.waits = False
        self.was_told = False

    @property
    def marker(self) -> TransactionMarker:
        """The marker to write now: the coordinator's epoch may have grown, and another coordinator may have written at
        one that this broker did not know of."""
        leader_epoch = self.runner.leader_epoch()
        if leader_epoch != self._marker.coordinator_epoch:
            self._marker = self._marker._replace(coordinator_epoch=leader_epoch)
        return self._marker


class Endings:
    """All prepared transactions of this coordinator, in all shards; owned by the event loop.

    `spawn` runs a task, `set_aside` counts transactions whose end raised an unexpected exception.
    """

    def __init__(
        self,
        markers: MarkerWriter,
        retries: Retries,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        set_aside: SetAside[str],
    ) -> None:
        self._markers = markers
        self._retries = retries
        self._spawn = spawn
        self._set_aside = set_aside
        self._endings: dict[str, _Ending] = {}
        self._superseded: dict[str, TransactionRunner] = {}
        """Transactions that a newer producer or coordinator has ended."""

    def begin(self, runner: TransactionRunner, transactional_id: str) -> None:
        """End a prepared transaction whose record is committed, unless that is in progress."""
        known = self._endings.get(transactional_id)
        if known is None or known.runner.is_closed:
            ending = self._endings[transactional_id] = _Ending(runner, transactional_id)
            self._write_markers(ending)

    def on_new_epoch(self, runner: TransactionRunner) -> None:
        """This broker is elected again and has kept the shard: transactions for which an unknown newer coordinator had
        fenced it are its own again. In the shard they are still prepared."""
        for transactional_id, its_runner in list(self._superseded.items()):
            if its_runner is runner or its_runner.is_closed:
                del self._superseded[transactional_id]
            if its_runner is runner and not runner.is_closed:
                self.begin(runner, transactional_id)

    def _is_over(self, ending: _Ending) -> bool:
        """Whether an ending is complete, or belongs to a newer runner or coordinator."""
        if self._endings.get(ending.transactional_id) is not ending:
            return True
        if ending.runner.is_closed:
            del self._endings[ending.transactional_id]
        return ending.runner.is_closed

    def _write_markers(self, ending: _Ending, at_most: int = MARKERS_PER_TURN) -> int:
        """Write some of the remaining markers; returns how many were tried."""
        if self._is_over(ending):
            return 0
        tried = min(at_most, len(ending.todo))
        is_refused = False
        marker = ending.marker
        for _ in range(tried):
            topic_partition = ending.todo.popleft()
            try:
                committed = self._markers.write(*topic_partition, marker)
            except Exception as error:  # noqa: BLE001 - the other partitions and transactions get their markers
                if self._is_superseded(ending, topic_partition, marker, error):
                    return tried
                if isinstance(error, ApiError) and error.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    ending.written.add(topic_partition)  # the partition no longer exists
                    continue
                if not isinstance(error, ApiError):
                    self._set_aside.put(ending.transactional_id, error)
                ending.todo.append(topic_partition)
                is_refused = True
                continue
            if committed is None:
                ending.written.add(topic_partition)
            else:
                ending.in_flight += 1
                self._wait_for_marker(ending, topic_partition, marker, committed)
        if is_refused:
            self._retry(ending)
        elif ending.todo:
            self._spawn(self._write_more_markers(ending))
        self._record_written(ending)
        return tried

    async def _write_more_markers(self, ending: _Ending) -> None:
        if not ending.waits:
            self._write_markers(ending)

    def _wait_for_marker(
        self,
        ending: _Ending,
        topic_partition: TopicPartition,
        marker: TransactionMarker,
        committed: "asyncio.Future[None]",
    ) -> None:
        def done(committed: "asyncio.Future[None]") -> None:
            ending.in_flight -= 1
            error = ApiError(ErrorCode.REQUEST_TIMED_OUT) if committed.cancelled() else committed.exception()
            if self._is_over(ending) or self._is_superseded(ending, topic_partition, marker, error):
                return
            if error is None:
                ending.written.add(topic_partition)
                self._record_written(ending)
            else:
                ending.todo.append(topic_partition)
                self._retry(ending)

        committed.add_done_callback(done)

    def _is_superseded(
        self,
        ending: _Ending,
        topic_partition: TopicPartition,
        marker: TransactionMarker,
        error: BaseException | None,
    ) -> bool:
        """Whether a newer producer or coordinator has taken over, and writes the remaining markers; not if this broker
        has a newer epoch itself since that marker was sent."""
        if not isinstance(error, ApiError) or error.error not in SUPERSEDED:
            return False
        if error.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED and marker != ending.marker:
            return False
        log.warning("Transactional id %r: %s-%d takes no marker: %s", ending.transactional_id, *topic_partition, error)
        self._endings.pop(ending.transactional_id, None)
        self._superseded[ending.transactional_id] = ending.runner
        return True

    def _retry(self, ending: _Ending) -> None:
        if not ending.waits:
            ending.waits = True
            self._retries.add(lambda at_most: self._try_again(ending, at_most))

    def _try_again(self, ending: _Ending, at_most: int) -> int:
        ending.waits = False
        return self._write_markers(ending, at_most)

    def _record_written(self, ending: _Ending) -> None:
        """Report the written markers to the shard; after the last one the transaction is complete."""
        is_last = not ending.todo and not ending.in_flight
        if not ending.written and not is_last:
            return
        transactional_id = ending.transactional_id
        try:
            ending.runner.carry_out(MarkersWritten(transactional_id, frozenset(ending.written)))
        except Exception as error:  # noqa: BLE001 - the other transactions are completed
            if self._is_over(ending):
                return
            if not isinstance(error, ApiError):
                self._set_aside.put(transactional_id, error)
            elif not ending.was_told:
                ending.was_told = True
                log.warning("Transactional id %r: cannot complete it yet: %s", transactional_id, error)
            self._retry(ending)
            return
        ending.written.clear()
        if is_last:
            self._endings.pop(transactional_id, None)
            self._set_aside.release(transactional_id)
