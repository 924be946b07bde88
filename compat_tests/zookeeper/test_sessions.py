"""The real command while ZooKeeper is away, after an expired session or a crash, and with an id that is taken."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.clock import SystemClock
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.waiting import consume, produce, topic_of
from tools.attack.hostile import ask, connect
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

REGISTERED_AGAIN_MS_MAX = 9_000
"""How long after its process a killed broker is there again; its session lasts twice as long."""
LONG_SESSION_MS = 18_000


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper to stop and start, with the ticks that servers usually have: they grant long sessions, too."""
    with ZooKeeperServer(tick_ms=2000) as server:
        yield server


@pytest.fixture
def chroot(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


@pytest.fixture
def alone(server: ZooKeeperServer, chroot: str) -> Iterator[BarnabasProcess]:
    """A broker of one's own."""
    with broker_on(server, chroot) as process:
        yield process


@pytest.fixture
def patient(server: ZooKeeperServer, chroot: str) -> Iterator[BarnabasProcess]:
    """A broker of one's own, whose session lasts longer than a busy machine takes for a start or a new connection."""
    with broker_on(server, chroot, **{"zookeeper.session.timeout.ms": str(LONG_SESSION_MS)}) as process:
        yield process


@pytest.fixture
def client(server: ZooKeeperServer, chroot: str) -> Iterator[Any]:
    """Somebody else's session with the same tree."""
    from kazoo.client import KazooClient

    kazoo = KazooClient(server.address + chroot, timeout=10)  # Real time: of a session, which the client renews
    kazoo.start()
    yield kazoo
    kazoo.stop()
    kazoo.close()


def admin_of(broker: BarnabasProcess) -> Any:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(broker: BarnabasProcess, name: str) -> None:
    from compat_tests.conftest import create_topic

    create_topic(broker.bootstrap_servers, name, 1, None)


def test_service_goes_on_while_zookeeper_is_away(server: ZooKeeperServer, patient: BarnabasProcess) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    create(patient, "t")
    create(patient, "v")
    produce(patient.bootstrap_servers, "t", "before")
    assert consume(patient.bootstrap_servers, "t", "g", 1) == ["before"]
    server.stop()
    admin = admin_of(patient)
    with connect(patient.bootstrap_servers) as connection:
        refused = ask(connection, InitProducerIdRequest(transactional_id=None), 2, InitProducerIdResponse)
    assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "on which producers ask again"
    produce(patient.bootstrap_servers, "t", "meanwhile")
    assert consume(patient.bootstrap_servers, "t", "g", 1) == ["meanwhile"], "from the offset that was committed"
    with pytest.raises(KafkaException) as failure:
        admin.create_topics([NewTopic("u", 1, 1)], operation_timeout=0.5, request_timeout=10)["u"].result(PATIENCE_S)
    assert failure.value.args[0].name() == "REQUEST_TIMED_OUT"
    with pytest.raises(KafkaException) as failure:
        admin.delete_topics(["v"], operation_timeout=0.5, request_timeout=10)["v"].result(PATIENCE_S)
    assert failure.value.args[0].name() == "REQUEST_TIMED_OUT"
    server.start()
    wait_until(lambda: topic_of(admin, "u"))
    wait_until(lambda: "v" not in admin.list_topics(timeout=PATIENCE_S).topics)
    with connect(patient.bootstrap_servers) as connection:
        assert (
            ask(connection, InitProducerIdRequest(transactional_id=None), 2, InitProducerIdResponse).error_code
            == ErrorCode.NONE
        )
    assert consume(patient.bootstrap_servers, "t", "other", 2) == ["before", "meanwhile"]
    assert "has expired" not in patient.log_text()


def test_an_expired_session(alone: BarnabasProcess, client: Any) -> None:
    """A process that stands still is taken for dead; when it moves again it registers anew and goes on."""
    create(alone, "t")
    produce(alone.bootstrap_servers, "t", "before")
    _, before = client.get("/brokers/ids/1")
    epoch = int(client.get("/controller_epoch")[0])
    gone, back = threading.Event(), threading.Event()
    client.exists("/brokers/ids/1", watch=lambda _event: gone.set())
    children.pause(alone.pid)
    try:
        assert gone.wait(PATIENCE_S)
        client.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"99"}}')
        if client.exists("/brokers/ids/1", watch=lambda _event: back.set()) is not None:
            back.set()
    finally:
        os.kill(alone.pid, signal.SIGCONT)
    assert back.wait(PATIENCE_S)
    _, after = client.get("/brokers/ids/1")
    assert after.czxid > before.czxid, "a new broker epoch"
    wait_until(lambda: int(client.get("/controller_epoch")[0]) == epoch + 1)
    assert produce(alone.bootstrap_servers, "t", "after") == 1
    wait_until(lambda: "joined its cluster again" in alone.log_text())
    create(alone, "u")
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
    admin = admin_of(alone)  # its futures end with it
    described = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert described["retention.ms"].value == "99", "changed while the broker was out"
    assert "has expired" in alone.log_text()


def test_a_killed_broker_comes_back(patient: BarnabasProcess, client: Any) -> None:
    create(patient, "t")
    produce(patient.bootstrap_servers, "t", "before")
    owner = client.get("/brokers/ids/1")[1].ephemeralOwner
    patient.kill()
    started_ms = SystemClock().now_ms()
    patient.start()
    assert "is there already" not in patient.log_text(), "it ended its former session itself"
    registration = client.get("/brokers/ids/1")[1]
    assert registration.ephemeralOwner != owner
    assert registration.ctime - started_ms < REGISTERED_AGAIN_MS_MAX, "it did not wait for its former session's end"
    assert produce(patient.bootstrap_servers, "t", "after") == 1
    patient.stop()
    assert client.exists("/brokers/ids/1") is None, "a clean stop waits for nothing"
    assert client.exists("/controller") is None


def test_a_taken_id_is_refused(server: ZooKeeperServer, alone: BarnabasProcess, chroot: str) -> None:
    second = broker_on(server, chroot)
    with pytest.raises(RuntimeError) as failure:
        second.start()
    second.close()
    text = str(failure.value)
    assert f"a broker with id 1 is registered already (PLAINTEXT://{alone.bootstrap_servers})" in text
    assert "Traceback" not in text
    create(alone, "t")


def test_a_second_broker_takes_over_when_the_first_one_stops(
    server: ZooKeeperServer, alone: BarnabasProcess, chroot: str
) -> None:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    with broker_on(server, chroot, **{"node.id": "2"}) as second:
        admin = admin_of(alone)
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result()
        produce(alone.bootstrap_servers, "t", "before")
        in_sync = lambda: sorted(admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions[0].isrs)  # noqa: E731
        wait_until(lambda: in_sync() == [1, 2])
        alone.stop()
        produce(second.bootstrap_servers, "t", "after")
        assert consume(second.bootstrap_servers, "t", "g", 2) == ["before", "after"]


def test_no_zookeeper_at_the_start() -> None:
    settings = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "300"}
    broker = BarnabasProcess(settings)
    with pytest.raises(RuntimeError, match=r"no connection to ZooKeeper at 127\.0\.0\.1:1 within 300 ms") as failure:
        broker.start()
    broker.close()
    assert "Traceback" not in str(failure.value)
    assert "connecting to ZooKeeper at 127.0.0.1:1" in str(failure.value), "it says so while it waits"


def test_a_host_without_an_address(server: ZooKeeperServer, chroot: str) -> None:
    with broker_on(server, chroot) as broker:
        assert "cannot be resolved" not in broker.log_text()
    settings = {"zookeeper.connect": "nowhere.invalid:2181", "zookeeper.connection.timeout.ms": "3000"}
    broker = BarnabasProcess(settings)
    with pytest.raises(RuntimeError, match=r"no connection to ZooKeeper at nowhere\.invalid:2181") as failure:
        broker.start()
    broker.close()
    assert "ZooKeeper's host nowhere.invalid cannot be resolved: " in str(failure.value)


def test_the_cluster_id_is_the_trees(server: ZooKeeperServer, chroot: str) -> None:
    """Data of one cluster is not mixed with the metadata of another."""
    with broker_on(server, chroot) as broker:
        create(broker, "t")
        broker.stop()
        from kazoo.client import KazooClient

        client = KazooClient(server.address + chroot)
        client.start()
        client.set("/cluster/id", b'{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAA"}')
        client.stop()
        client.close()
        with pytest.raises(RuntimeError, match="AAAAAAAAAAAAAAAAAAAAAA"):
            broker.start()
