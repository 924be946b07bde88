"""Apache Kafka 3.9.1 in ZooKeeper mode, on a directory and a tree that others have used."""

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tools.kafka_runtime import START_TIMEOUT_S, ZOOKEEPER_ERA_VERSION, KafkaServer


class KafkaOnZooKeeper(KafkaServer):
    """A broker that keeps its metadata below `connect_string`; a context manager."""

    def __init__(self, connect_string: str, data_dir: Path) -> None:
        super().__init__(version=ZOOKEEPER_ERA_VERSION, data_dir=data_dir)
        self._connect_string = connect_string

    def _write_properties(self) -> Path:
        settings = {
            "broker.id": "1",
            "zookeeper.connect": self._connect_string,
            "zookeeper.session.timeout.ms": "6000",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        path = self.log_file.with_name("server.properties")
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        """A directory needs no formatting in ZooKeeper mode."""

    def _wait_until_ready(self, offset: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if b"[KafkaServer id=1] started" in self.log_file.read_bytes()[offset:] and self._knows_its_controller():
                return
            time.sleep(0.1)
        raise RuntimeError(f"Apache Kafka did not start:\n{self.log_tail()}")

    def _knows_its_controller(self) -> bool:
        """It may start before it has heard of itself, and librdkafka then waits minutes before it asks again."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=10)
        return metadata.controller_id == 1
