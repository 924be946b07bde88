"""Exactly once from topic to topic, under load: a worker that reads, writes and commits what it read in transactions.

It is kafka-python's: librdkafka's `send_offsets_to_transaction` may wait for ever when its broker goes away
(librdkafka issues 5456 and 5511). kafka-python may do so too: it forgets a request for which it could not connect to
the coordinator. Here the wait has an end.
"""

import logging
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

from tools.soak.history import Mode, Poll, Send, Status
from tools.soak.workload import ABORT_PROBABILITY, TRANSACTION_TIMEOUT_S, Worker, value_of

with warnings.catch_warnings():
    # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError
    from kafka.net.inet import KafkaNetSocket
    from kafka.structs import OffsetAndMetadata

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # brokers that go away are the point

GROUP = "copiers"
RECORDS_MAX = 25
PAUSE_S = 0.05
"""After a transaction: it takes this client most of a CPU to keep up with all that is written, and others need it."""

PATIENCE_S = 10


_sock_connect = KafkaNetSocket.sock_connect


async def _connect_or_close(self: Any, net: Any, sock: Any, *arguments: Any, **settings: Any) -> Any:
    """kafka-python leaves a socket open that could not connect, as at the end, when there is no broker any more."""
    try:
        return await _sock_connect(self, net, sock, *arguments, **settings)
    except BaseException:
        sock.close()
        raise


KafkaNetSocket.sock_connect = _connect_or_close


class Copier(Worker):
    """A member of a group: the offsets of each poll and one new record are a transaction."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._consumer: Any = None
        self._producer: Any = None
        self._moved: set[int] = set()

    def _open(self) -> None:
        """Clients whose predecessors are fenced; the consumer starts at what is committed."""
        self._producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            transactional_id=f"soak-{self.process}",
            transaction_timeout_ms=round(TRANSACTION_TIMEOUT_S * 1000),
            reconnect_backoff_max_ms=200,
        )
        self._producer.init_transactions()
        self._consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            group_id=GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            max_poll_records=RECORDS_MAX,
            reconnect_backoff_max_ms=200,
        )
        self._consumer.subscribe([self.topic], listener=_Listener(self._moved))

    def run_once(self) -> None:
        try:
            if self._consumer is None:
                self._open()
            polled = self._consumer.poll(timeout_ms=200)
        except KafkaError:
            self.close()  # the broker was away for longer than the client waits
            return
        if not polled:
            return
        rebalanced = frozenset(self._moved)
        self._moved.clear()
        records = {
            each.partition: [(record.offset, value_of(record.value)) for record in found]
            for each, found in polled.items()
        }
        send = Send(self.random.randrange(self.partitions), self.value())
        status = self._transaction_in_time(records, send)
        self.record(
            status,
            [Poll(records), send],
            is_transaction=True,
            mode=Mode.SUBSCRIBE,
            rebalanced=rebalanced,
            consumed=frozenset(
                (GROUP, partition, offset) for partition, found in records.items() for offset, _ in found
            ),
        )
        time.sleep(PAUSE_S)
        if status is Status.OK:
            self.add_commit(GROUP, {partition: found[-1][0] + 1 for partition, found in records.items()})
        elif status is Status.FAIL:
            self._go_back(records)
        else:
            self.close()

    def _transaction_in_time(self, records: dict[Any, list[tuple[int, Any]]], send: Send) -> Status:
        """The transaction; INFO when it takes so long that the producer has to be left behind."""
        outcome: list[Status | BaseException] = []

        def run() -> None:
            try:
                outcome.append(self._transaction(records, send))
            except BaseException as error:  # noqa: BLE001 - raised again below
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        if not outcome:
            return Status.INFO
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _transaction(self, records: dict[Any, list[tuple[int, Any]]], send: Send) -> Status:
        producer, aborts = self._producer, self.random.random() < ABORT_PROBABILITY
        try:
            producer.begin_transaction()
            producer.send(self.topic, str(send.value).encode(), partition=send.key)
            producer.send_offsets_to_transaction(
                {
                    TopicPartition(self.topic, partition): OffsetAndMetadata(found[-1][0] + 1, "", -1)
                    for partition, found in records.items()
                },
                self._consumer.group_metadata(),
            )
        except KafkaError:
            aborts = True
        try:
            if aborts:
                producer.abort_transaction()
                return Status.FAIL
            producer.commit_transaction()
        except KafkaError:
            return Status.INFO
        return Status.OK

    def _go_back(self, records: dict[Any, list[tuple[int, Any]]]) -> None:
        """What was aborted is read again, by whoever has the partition."""
        for partition, found in records.items():
            if TopicPartition(self.topic, partition) in self._consumer.assignment():
                self._consumer.seek(TopicPartition(self.topic, partition), found[0][0])

    def close(self) -> None:
        consumer, producer, self._consumer, self._producer = self._consumer, self._producer, None, None
        for client in (consumer, producer):
            if client is not None:
                with suppress(KafkaError):
                    client.close(timeout_ms=5_000) if client is consumer else client.close(timeout=5)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes which partitions came."""

    def __init__(self, moved: set[int]) -> None:
        self._moved = moved

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Nothing is under way between two polls."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._moved |= {each.partition for each in assigned}
