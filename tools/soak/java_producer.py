"""Transactions of Kafka's own producer with transaction version 2: the broker adds partitions and groups when it
receives records and offsets for them, and the epoch is bumped at every end (KIP-890).

It runs in a separate JVM and is called through py4j, so its responses are in the history like those of any other
client.
"""

from typing import Any

from confluent_kafka import Consumer, KafkaException
from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway
from py4j.protocol import Py4JJavaError

from barnabas.spark_examples.java import find_java
from tools.foreign.kafka import SMALL_JVM, kafka_runtime
from tools.soak.commits import fetch
from tools.soak.history import Send, Status
from tools.soak.workload import ABORT_PROBABILITY, TRANSACTION_TIMEOUT_S, Worker

STILL_UNKNOWN = frozenset({"TimeoutException", "InterruptException"})
"""The errors after which a repeated call continues to wait for the same end."""


class JavaTransactionalProducer(Worker):
    """Transactions of a few records and, half of them, of an offset; one in ten is aborted on purpose.

    No other client commits for its group, so the group's committed offset is known before each transaction.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._transactional_id = f"soak-{self.process}"
        self._group = f"offsets-of-{self._transactional_id}"
        runtime = kafka_runtime()
        # The process ends with its standard input: without a reference the garbage collector would close that.
        port, self._jvm = launch_gateway(
            classpath=runtime.classpath,
            javaopts=runtime.java_command("", jvm_options=["-Xmx128m", *SMALL_JVM[1:]], log_level="OFF")[1:-3],
            java_path=str(find_java()),
            jarpath=find_jar_path(),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._kafka = self._gateway.jvm.org.apache.kafka
        self._producer: Any = None
        self._consumer = Consumer(self.config(**{"group.id": self._group, "enable.auto.commit": False}))
        self._ended = 0
        self._first: tuple[int, int] | None = None
        """Producer id and epoch before its first transaction here."""
        self._target = 0
        self._possible = {0}
        """The possible committed offsets of the group; 0 for none."""

    def run_once(self) -> None:
        try:
            producer = self._open()
            if not self._look_at_commits():
                return
        except Py4JJavaError:
            self._close_producer()
            return
        sends = self.sends_of_transaction()
        has_offset = self.random.random() < 0.5
        self._target += 1
        futures: list[Any] = []
        status = Status.INFO
        try:
            producer.beginTransaction()
            for send in sends:
                record = self._kafka.clients.producer.ProducerRecord(self.topic, send.key, None, str(send.value))
                futures.append(producer.send(record))
            if has_offset:
                self._add_offset(producer)
            status = self._end(producer, aborts=self.random.random() < ABORT_PROBABILITY)
        except Py4JJavaError:
            status = self._give_up(producer)
        offsets = [future.get().offset() for future in futures] if status is Status.OK else [None] * len(sends)
        self.record(
            status,
            [Send(send.key, send.value, offset) for send, offset in zip(sends, offsets, strict=True)],
            is_transaction=True,
        )
        self._ended += status is not Status.INFO
        if has_offset:
            self._note_commit(status)

    def _open(self) -> Any:
        """Create a producer, which fences its predecessor."""
        if self._producer is None:
            serializer = "org.apache.kafka.common.serialization.StringSerializer"
            producer = self._kafka.clients.producer.KafkaProducer(
                {
                    "bootstrap.servers": self.bootstrap_servers,
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": str(round(TRANSACTION_TIMEOUT_S * 1000)),
                    "reconnect.backoff.max.ms": "200",
                    "key.serializer": serializer,
                    "value.serializer": serializer,
                }
            )
            self._producer = producer
            producer.initTransactions()
        if self._first is None:
            self._first = self._identity()
        return self._producer

    def _add_offset(self, producer: Any) -> None:
        partition = self._kafka.common.TopicPartition(self.topic, 0)
        offset = self._kafka.clients.consumer.OffsetAndMetadata(self._target)
        group = self._kafka.clients.consumer.ConsumerGroupMetadata(self._group)
        producer.sendOffsetsToTransaction({partition: offset}, group)

    def _end(self, producer: Any, *, aborts: bool) -> Status:
        """Commit or abort, for as long as it takes. Raises Py4JJavaError if the result cannot be known."""
        while True:
            try:
                producer.abortTransaction() if aborts else producer.commitTransaction()
                return Status.FAIL if aborts else Status.OK
            except Py4JJavaError as error:
                if error.java_exception.getClass().getSimpleName() in STILL_UNKNOWN:
                    continue
                if aborts:
                    raise
                aborts = True

    def _give_up(self, producer: Any) -> Status:
        """Abort the transaction of a failed call, or leave that to the next producer."""
        try:
            return self._end(producer, aborts=True)
        except Py4JJavaError:
            self._close_producer()
            return Status.INFO

    def _note_commit(self, status: Status) -> None:
        if status is Status.OK:
            self._possible = {self._target}
            self.add_commit(self._group, {0: self._target})
        elif status is Status.INFO:
            self._possible.add(self._target)

    def _look_at_commits(self) -> bool:
        """Check the group's committed offset. Returns whether the broker returned it."""
        try:
            found = fetch(self._consumer, self._group, self.topic, [0])
        except KafkaException:
            return False
        for offset in found.values():
            if max(offset, 0) not in self._possible:
                self.problems.append(f"group {self._group} has offset {offset}, not one of {self._possible}")
            self._possible = {max(offset, 0)}
        return bool(found)

    def _identity(self) -> tuple[int, int]:
        """The producer id and epoch at the coordinator."""
        admin = self._kafka.clients.admin.Admin.create({"bootstrap.servers": self.bootstrap_servers})
        try:
            described = admin.describeTransactions([self._transactional_id]).description(self._transactional_id).get()
        finally:
            admin.close()
        return described.producerId(), described.producerEpoch()

    def _look_at_epoch(self) -> None:
        """Check that the end bumped the epoch, as with version 2; the classic protocol would not have changed it.
        Another producer id proves the same: it is assigned when the epochs of one are used up.
        """
        if self._first is None:
            return
        producer_id, epoch = self._identity()
        bumps = epoch - self._first[1]
        if producer_id == self._first[0] and bumps < self._ended:
            self.problems.append(f"{bumps} epochs in {self._ended} transactions: no version 2")

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(self._gateway.jvm.java.time.Duration.ZERO)

    def close(self) -> None:
        try:
            self._look_at_epoch()
            self._close_producer()
        except Py4JJavaError as error:
            self.problems.append(str(error))
        finally:
            self._consumer.close()
            self._gateway.shutdown()
            self._jvm.stdin.close()
            self._jvm.wait(10)
