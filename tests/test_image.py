"""The container image: built, started and used as its users do. `make test-image` puts an engine in place for it; the
tests are skipped where none answers."""

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.required import tool_missing
from tools.foreign.container_engine import addresses, answering
from tools.foreign.zookeeper import ZooKeeperServer
from tools.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parent.parent
BASE = os.environ.get("BARNABAS_IMAGE_BASE", "python:3.13-slim")
IS_ON_HOST_NETWORK = os.environ.get("BARNABAS_IMAGE_NETWORK") == "host"
GRACE_S = 10
"""The time that `docker stop` gives a container before it kills it."""
MOST_BYTES_ABOVE_BASE = 110_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first build downloads the base image
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # docker's client leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass(frozen=True, slots=True)
class RunningImage:
    """A started container and the address of its broker."""

    container: Any
    bootstrap_servers: str

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            if b"ready: " in (log := self.container.logs()):
                return True
            self.container.reload()
            assert self.container.status in ("created", "running"), log.decode()
            return False

        wait_until(is_ready, lambda: f"ready: {self.container.logs().decode()}")


Run = Callable[..., RunningImage]
"""Starts the image with variables (KAFKA_..., in lower case and without the prefix) and docker-py's options."""


@pytest.fixture(scope="module")
def engine() -> Any:
    """The container engine's client."""
    import docker

    address = answering(addresses(os.environ))
    if address is None:
        tool_missing("no container engine answers (`make test-image` puts one in place, as root on Debian)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)  # for testcontainers
        with closing(docker.DockerClient(base_url=address, timeout=PATIENCE_S)) as client:
            yield client


@pytest.fixture(scope="module")
def image(engine: Any) -> Iterator[str]:
    from testcontainers.core.image import DockerImage

    options = {"network_mode": "host"} if IS_ON_HOST_NETWORK else {}
    tag = f"barnabas-test:{secrets.token_hex(4)}"
    with DockerImage(path=ROOT, tag=tag, buildargs={"BASE": BASE}, **options) as built:
        yield str(built)


@pytest.fixture
def run(engine: Any, image: str) -> Iterator[Run]:
    """Starts containers whose address inside and outside is the same, as clients need it; they end with the test."""
    with ExitStack() as stack:

        def started(user_options: dict[str, Any] | None = None, **configs: str) -> RunningImage:
            port = free_port()
            settings = {"advertised_listeners": f"PLAINTEXT://localhost:{port}"}
            options: dict[str, Any] = {"ports": {"9092/tcp": ("127.0.0.1", port)}}
            if IS_ON_HOST_NETWORK:
                settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
                settings["barnabas_http_address"] = f"127.0.0.1:{free_port()}"
                options = {"network_mode": "host"}
            environment = {f"KAFKA_{key.upper()}": value for key, value in {**settings, **configs}.items()}
            options |= user_options or {}
            container = engine.containers.run(image, detach=True, environment=environment, **options)
            stack.callback(container.remove, force=True, v=True)
            return RunningImage(container, f"localhost:{port}")

        yield started


@pytest.fixture
def broker(run: Run) -> RunningImage:
    """A container as most people start it."""
    started = run(num_partitions="3")
    started.wait_until_ready()
    return started


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def produce(bootstrap_servers: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(PATIENCE_S) == 0


def numbers_in(bootstrap_servers: str, topic: str, count: int) -> list[int]:
    """The records of a topic, until there are `count` different ones: a consumer that joins its group again, because
    the coordinator has gone, reads from the start again."""
    from confluent_kafka import Consumer

    group = f"images-{secrets.token_hex(4)}"
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        values |= {int(message.value() or b"-1") for message in consumer.consume(count, timeout=0.5)}
    consumer.close()
    return sorted(values)


def last_line(container: Any, status: int) -> str:
    """The last line of a container; it has to have ended with this status."""
    assert container.wait(timeout=PATIENCE_S)["StatusCode"] == status
    lines = container.logs().decode().splitlines()
    assert not any("Traceback" in line for line in lines), lines
    return str(lines[-1])


def test_the_image_is_small(engine: Any, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    """pip, caches and build tools stay in the build stage."""
    whole, base = (engine.images.get(name).attrs["Size"] for name in (image, BASE))
    with capsys.disabled():
        print(f"\nThe image has {whole / 1e6:.0f} MB, {(whole - base) / 1e6:.0f} MB above its base {BASE}.")

    assert whole - base <= MOST_BYTES_ABOVE_BASE
    lookup = "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is not None)"
    engine.containers.run(
        image, ["-c", lookup], entrypoint="/opt/barnabas/bin/python", network_mode="none", remove=True
    )


def test_clients_outside_produce_and_consume(broker: RunningImage) -> None:
    from confluent_kafka.admin import AdminClient

    produce(broker.bootstrap_servers, "images", 100)

    assert numbers_in(broker.bootstrap_servers, "images", 100) == list(range(100))
    described = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics("images", timeout=PATIENCE_S)
    assert len(described.topics["images"].partitions) == 3, "KAFKA_NUM_PARTITIONS is num.partitions"


def test_a_wrong_variable_is_told(run: Run) -> None:
    container = run(num_partitions="many").container

    assert re.search(r"Invalid value many .*num\.partitions", last_line(container, 2))


def test_a_container_becomes_healthy(broker: RunningImage) -> None:
    container = broker.container

    def is_over() -> bool:
        container.reload()
        return container.attrs["State"]["Health"]["Status"] != "starting"

    wait_until(is_over, "the first health check")
    assert container.attrs["State"]["Health"]["Status"] == "healthy", container.attrs["State"]["Health"]["Log"]


def test_a_container_runs_without_root_and_uses_kafkas_folder(broker: RunningImage) -> None:
    status, user = broker.container.exec_run(["python", "-c", "import os; print(os.getuid())"])
    assert (status, user.strip()) == (0, b"1000")

    status, files = broker.container.exec_run(["ls", "/var/lib/kafka/data"])
    assert status == 0
    assert b"meta.properties" in files


def test_a_user_without_rights(run: Run) -> None:
    """Any user may run it whose data folder lets him write; another one is told which folder does not."""
    broker = run({"user": "12345", "cap_drop": ["ALL"], "tmpfs": {"/data": "mode=1777"}}, log_dirs="/data")
    broker.wait_until_ready()
    produce(broker.bootstrap_servers, "images", 10)
    assert numbers_in(broker.bootstrap_servers, "images", 10) == list(range(10))

    refused = run({"user": "12345", "cap_drop": ["ALL"]})
    assert re.search(r"/var/lib/kafka/data .*Permission denied", last_line(refused.container, 1))


def test_a_read_only_root(run: Run) -> None:
    broker = run({"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]})
    broker.wait_until_ready()

    produce(broker.bootstrap_servers, "images", 10)

    assert numbers_in(broker.bootstrap_servers, "images", 10) == list(range(10))
    status, _ = broker.container.exec_run(["touch", "/tmp/writable"])
    assert status != 0


def test_a_container_stops_cleanly_within_the_grace_period(broker: RunningImage) -> None:
    """With a client that is connected, and waits for records."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "waits", "log_level": 0})
    consumer.subscribe(["images"])
    produce(broker.bootstrap_servers, "images", 1)
    consumer.poll(1)

    broker.container.stop(timeout=GRACE_S)  # Real time: the grace period of the engine
    consumer.close()

    assert broker.container.wait()["StatusCode"] == 0, "it was killed when that was over"


@pytest.fixture
def volume(engine: Any) -> Iterator[str]:
    """The name of a volume; a test asks for it before `run`, whose containers have to go first."""
    made = engine.volumes.create(f"barnabas-test-{secrets.token_hex(4)}")
    yield made.name
    made.remove(force=True)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_volume_survives_its_container(volume: str, run: Run, end: str) -> None:
    mounted = {"volumes": {volume: {"bind": "/var/lib/kafka/data", "mode": "rw"}}}
    first = run(mounted)
    first.wait_until_ready()
    produce(first.bootstrap_servers, "images", 100)
    getattr(first.container, end)()
    first.container.wait()

    second = run(mounted)
    second.wait_until_ready()
    assert numbers_in(second.bootstrap_servers, "images", 100) == list(range(100))


def test_testcontainers_starts_it_as_it_starts_kafka(image: str) -> None:
    """As docs/testing/containers.md shows."""
    from confluent_kafka.admin import AdminClient

    from barnabas.testing.containers import BarnabasContainer

    class OnHostNetwork(BarnabasContainer):
        """There is nothing to map, and only this machine is to reach it."""

        def __init__(self, image: str, **options: Any) -> None:
            super().__init__(image, port=free_port(), network_mode="host", **options)
            self.ports.clear()
            self.with_env("KAFKA_LISTENERS", f"PLAINTEXT://127.0.0.1:{self.port},BROKER://127.0.0.1:{free_port()}")
            self.with_env("KAFKA_BARNABAS_HTTP_ADDRESS", f"127.0.0.1:{free_port()}")

        def get_exposed_port(self, port: int) -> int:
            return port

    here = partial(OnHostNetwork if IS_ON_HOST_NETWORK else BarnabasContainer, image)
    page = (ROOT / "docs" / "testing" / "containers.md").read_text()
    [block] = [text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "BarnabasContainer" in text]
    imported = "from barnabas.testing.containers import BarnabasContainer\n"
    assert imported in block
    exec(block.replace(imported, ""), {"BarnabasContainer": here})

    with here(configs={"num.partitions": 3}) as kafka:
        produce(kafka.get_bootstrap_server(), "images", 100)
        assert numbers_in(kafka.get_bootstrap_server(), "images", 100) == list(range(100))
        described = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()}).list_topics(
            "images", timeout=PATIENCE_S
        )
        assert len(described.topics["images"].partitions) == 3


def test_three_brokers_of_the_compose_file(image: str, engine: Any) -> None:
    """Three brokers with the settings of `compose.cluster.yaml`, with names and ports of this machine, beside a real
    ZooKeeper: one of them may be lost."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    services = yaml.safe_load((ROOT / "compose.cluster.yaml").read_text())["services"]
    brokers = [name for name in services if name.startswith("broker")]
    assert len(brokers) == 3
    with ZooKeeperServer() as zookeeper, ExitStack() as stack:
        here = {"zookeeper:2181": zookeeper.address}
        for name in brokers:
            advertised = services[name]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
            host, network = (address.partition("://")[2] for address in advertised.split(","))
            assert services[name]["ports"][0] == f"127.0.0.1:{host.rpartition(':')[2]}:{host.rpartition(':')[2]}"
            here |= {host: f"localhost:{free_port()}", network: f"localhost:{free_port()}"}
        running = []
        for name in brokers:
            environment = dict(services[name]["environment"])
            for there, address in here.items():
                environment = {key: value.replace(there, address) for key, value in environment.items()}
            # On the host's network both listeners are the machine's, which is what the names stand for here.
            environment["KAFKA_LISTENERS"] = environment["KAFKA_ADVERTISED_LISTENERS"]
            environment["KAFKA_BARNABAS_HTTP_ADDRESS"] = f"127.0.0.1:{free_port()}"
            container = engine.containers.run(image, detach=True, environment=environment, network_mode="host")
            stack.callback(container.remove, force=True, v=True)
            address = environment["KAFKA_ADVERTISED_LISTENERS"].partition(",")[0].removeprefix("HOST://")
            running.append(RunningImage(container, address))
        for each in running:
            each.wait_until_ready()
        everybody = ",".join(each.bootstrap_servers for each in running)
        admin = AdminClient({"bootstrap.servers": everybody})
        admin.create_topics([NewTopic("images", 3)], operation_timeout=30)["images"].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not (
            found := admin.list_topics("images", PATIENCE_S).topics["images"].partitions
        ):  # of who has not heard of it
            assert time.monotonic() < deadline
        assert [len(each.replicas) for each in found.values()] == [3, 3, 3]
        produce(everybody, "images", 100)
        # The topic that groups need is made for the first of them, of three replicas, while there are three brokers.
        assert numbers_in(everybody, "images", 100) == list(range(100))
        running[0].container.kill()
        assert numbers_in(everybody, "images", 100) == list(range(100))
