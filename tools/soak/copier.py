"""Exactly-once copies from topic to topic under load: a worker that reads, writes, and commits the read offsets in
transactions.

It uses kafka-python: librdkafka's `send_offsets_to_transaction` may wait forever if its broker goes down (librdkafka
issues 5456 and 5511). kafka-python may do so too: it forgets a request if it could not connect to the coordinator. Here
the wait has a limit.
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

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # brokers that go down are intended

GROUP = "copiers"
RECORDS_MAX = 25
PAUSE_S = 0.05
"""The pause after a transaction: without it, this client needs most of a CPU, which others need."""

PATIENCE_S = 10


_sock_connect = KafkaNetSocket.sock_connect


async def _connect_or_close(self: Any, net: Any, sock: Any, *arguments: Any, **settings: Any) -> Any:
    """Close a socket that could not connect, which kafka-python leaves open: for example at the end, without any
    broker.
    """
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
        """Create clients that fence their predecessors; the consumer starts at the committed offsets."""
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
            self.close()  # the broker was down for longer than the client waits
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
        """Run the transaction. Returns INFO if it takes so long that the producer has to be abandoned."""
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
        """Go back to the start of aborted records, to read them again if the partition is still assigned."""
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
    """Records the newly assigned partitions."""

    def __init__(self, moved: set[int]) -> None:
        self._moved = moved

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Do nothing: no transaction is open between two polls."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._moved |= {each.partition for each in assigned}
