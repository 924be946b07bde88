"""compose.yaml and compose.cluster.yaml: their parts fit each other and the image, and brokers with these settings
serve. They run as processes here, without a container engine; tests/test_image.py has containers.
"""

import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.test_image import numbers_in, produce
from tools.attack.hostile import ask, connect
from tools.processes.barnabas import BarnabasZooKeeper
from tools.processes.server import ServerProcess, free_ports
from tools.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parent.parent


def image_properties() -> dict[str, str]:
    """The file that the image has, by which its command starts a broker."""
    return dict(re.findall(r"^ +'([a-z.]+)=(.*)' \\$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def composed(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / file).read_text()))


def brokers_of(file: str) -> dict[str, Any]:
    return {name: service for name, service in composed(file)["services"].items() if name.startswith("broker")}


def addresses(listeners: str) -> dict[str, str]:
    """HOST:PORT by the listener's name."""
    return dict(each.split("://") for each in listeners.split(","))


@pytest.mark.parametrize(("file", "count"), [("compose.yaml", 1), ("compose.cluster.yaml", 3)])
def test_the_parts_of_a_file_fit_each_other_and_the_image(file: str, count: int) -> None:
    whole, brokers, image = composed(file), brokers_of(file), image_properties()
    assert len(brokers) == count
    volumes, published = [], []
    for name, service in brokers.items():
        environment = service["environment"]
        listeners, advertised = (
            addresses(environment[f"KAFKA_{each}"]) for each in ("LISTENERS", "ADVERTISED_LISTENERS")
        )
        port = advertised["HOST"].removeprefix("localhost:")
        assert (service["build"], service["hostname"]) == (".", name)
        assert listeners == {"HOST": f":{port}", "NETWORK": ":19092"}
        assert advertised["NETWORK"] == f"{name}:19092"
        client_port, http_port = service["ports"]
        assert client_port == f"127.0.0.1:{port}:{port}"
        assert re.fullmatch(rf"127\.0\.0\.1:\d+{image['barnabas.http.address']}", http_port)
        [volume] = service["volumes"]
        assert volume.partition(":")[2] == image["log.dirs"]
        volumes.append(volume.partition(":")[0])
        published += [client_port, http_port]
    assert len(set(published)) == 2 * count
    assert len(set(volumes)) == count
    assert set(volumes) <= set(whole["volumes"])
    if count > 1:
        assert len({service["environment"]["KAFKA_BROKER_ID"] for service in brokers.values()}) == count
        for service in brokers.values():
            connect = service["environment"]["KAFKA_ZOOKEEPER_CONNECT"].partition(":")[0]
            assert service["depends_on"] == [connect]
            assert connect in whole["services"]


class Composed(ServerProcess):
    """The process that the image starts, with a service's variables."""

    title = "composed broker"

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder / "data")
        self.environment = environment
        self.bootstrap_servers = addresses(environment["KAFKA_ADVERTISED_LISTENERS"])["HOST"]
        folder.mkdir()
        properties = {**image_properties(), "log.dirs": str(self.log_dir), "barnabas.http.address": "127.0.0.1:0"}
        self._file = folder / "server.properties"
        self._file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "barnabas", "serve", str(self._file)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        return any(line.startswith("ready: ") for line in printed)


def on_this_machine(brokers: Mapping[str, Any], zookeeper: str) -> list[dict[str, str]]:
    """The variables of each broker, with ports that are free here, and this machine for names that containers have."""
    others = {"zookeeper:2181": zookeeper}
    for service in brokers.values():
        host, network = addresses(service["environment"]["KAFKA_ADVERTISED_LISTENERS"]).values()
        others |= {each: f"127.0.0.1:{port}" for each, port in zip((host, network), free_ports(2), strict=True)}
    found = []
    for service in brokers.values():
        environment = {}
        for key, value in service["environment"].items():
            for there, here in others.items():
                value = value.replace(there, here)
            environment[key] = value
        # Both listeners are on one machine here: what is advertised says which is which.
        environment["KAFKA_LISTENERS"] = environment["KAFKA_ADVERTISED_LISTENERS"]
        environment["KAFKA_ZOOKEEPER_SESSION_TIMEOUT_MS"] = "4000"  # others lead sooner than after 18 s
        found.append(environment)
    return found


@pytest.mark.live
@pytest.mark.slow
def test_the_broker_of_one_serves(tmp_path: Path) -> None:
    [environment] = on_this_machine(brokers_of("compose.yaml"), zookeeper="")
    with Composed(tmp_path / "broker", environment) as broker:
        produce(broker.bootstrap_servers, "lines", 100)
        assert numbers_in(broker.bootstrap_servers, "lines", 100) == list(range(100))


def wait_known(broker: Composed, topic: str, partitions: int) -> None:
    """A topic is created when the controller's own broker serves it; the others hear of it a moment later."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with connect(broker.bootstrap_servers) as connection:
        wait_until(
            lambda: len(ask(connection, request, 8, MetadataResponse).topics[0].partitions) >= partitions,
            f"a broker that hears of {topic}",
        )


@pytest.mark.live
@pytest.mark.slow
def test_one_broker_of_a_cluster_may_be_lost(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

    with ExitStack() as stack:
        zookeeper = stack.enter_context(BarnabasZooKeeper(data_dir=tmp_path / "zookeeper"))
        environments = on_this_machine(brokers_of("compose.cluster.yaml"), zookeeper.address)
        running = [stack.enter_context(Composed(tmp_path / f"broker{n}", each)) for n, each in enumerate(environments)]
        everybody = ",".join(each.bootstrap_servers for each in running)
        admin = AdminClient({"bootstrap.servers": everybody})
        admin.create_topics([NewTopic("lines", 3)], operation_timeout=30)["lines"].result(PATIENCE_S)
        for broker in running:
            wait_known(broker, "lines", 3)
        replicas = [
            len(each.replicas) for each in admin.list_topics("lines", PATIENCE_S).topics["lines"].partitions.values()
        ]
        assert replicas == [3, 3, 3]
        [configs] = admin.describe_configs([ConfigResource("topic", "lines")]).values()
        assert configs.result(PATIENCE_S)["min.insync.replicas"].value == "2"
        produce(everybody, "lines", 100)
        # The topic that groups need is made for the first of them, of three replicas, while there are three brokers.
        assert numbers_in(everybody, "lines", 100) == list(range(100))
        running[0].kill()
        assert numbers_in(everybody, "lines", 100) == list(range(100))
        for broker in running[1:]:
            broker.kill()
