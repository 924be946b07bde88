"""Apache Kafka 3.9.1 in ZooKeeper mode, on a directory and a tree that others have used."""

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tools.foreign.kafka import ZOOKEEPER_ERA_VERSION, KafkaServer
from tools.waiting import PATIENCE_S


class KafkaOnZooKeeper(KafkaServer):
    """A broker that keeps its metadata below `connect_string`; a context manager. It is ready when it knows who is the
    controller: itself, unless the test says otherwise. `keys` are further ones of its configuration."""

    def __init__(
        self, connect_string: str, data_dir: Path, controller_id: int = 1, keys: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(version=ZOOKEEPER_ERA_VERSION, data_dir=data_dir)
        self._keys = dict(keys or {})
        self._connect_string = connect_string
        self._controller_id = controller_id
        self._has_started = False

    def _command(self) -> list[str]:
        self._has_started = False
        return super()._command()

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
            **self._keys,
        }
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        """A directory needs no formatting in ZooKeeper mode."""

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        self._has_started |= any("[KafkaServer id=1] started" in line for line in logged)
        return self._has_started and self._knows_its_controller()

    def _knows_its_controller(self) -> bool:
        """It may start before it has heard of itself, and librdkafka then waits minutes before it asks again."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=PATIENCE_S)
        return metadata.controller_id == self._controller_id
