"""The pages of a cluster's brokers when one of them is gone, comes back, and is in sync again."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from barnabas.testing import Cluster
from tools.waiting import PATIENCE_S, wait_until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(barnabas_http_address="127.0.0.1:0", auto_leader_rebalance_enable=False) as running:
        yield running


def get(cluster: Cluster, broker: int, page: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{cluster.brokers[broker].server._http.port}/{page}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figure(cluster: Cluster, broker: int, name: str) -> float:
    """A metric of one broker, all its labels together."""
    _, page = get(cluster, broker, "metrics")
    found = [float(line.rpartition(" ")[2]) for line in page.splitlines() if re.match(rf"{name}(\{{| )", line)]
    assert found, name
    return sum(found)


def test_metrics_tell_of_a_broker_that_is_gone(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    cluster.create_topic("lonely", 3, replication_factor=1)
    everybody = range(3)
    assert [figure(cluster, broker, "barnabas_controller_active") for broker in everybody].count(1) == 1
    assert sum(figure(cluster, broker, "barnabas_at_min_isr_partitions") for broker in everybody) == 0
    assert all(figure(cluster, broker, "barnabas_peer_requests_total") > 0 for broker in everybody)
    controller = cluster.controller()
    assert figure(cluster, controller, "barnabas_controller_epoch") == 1
    assert figure(cluster, controller, "barnabas_controller_event_duration_seconds_count") > 0
    assert figure(cluster, controller, "barnabas_offline_partitions") == 0

    gone = (controller + 1) % 3
    cluster.brokers[gone].kill()
    left = [broker for broker in everybody if broker != gone]
    # Each of the three partitions has lost one of its three replicas, and the topic without others one of its leaders.
    assert sum(figure(cluster, broker, "barnabas_at_min_isr_partitions") for broker in left) == 3
    assert sum(figure(cluster, broker, "barnabas_under_replicated_partitions") for broker in left) == 3
    assert sum(figure(cluster, broker, "barnabas_under_min_isr_partitions") for broker in left) == 0
    assert figure(cluster, controller, "barnabas_offline_partitions") == 1
    assert [figure(cluster, broker, "barnabas_offline_partitions") for broker in left if broker != controller] == [0]


@pytest.mark.slow
def test_a_broker_is_ready_when_it_is_in_sync_after_its_start(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    controller = cluster.controller()
    back, leader = (controller + 1) % 3, (controller + 2) % 3
    assert get(cluster, back, "readyz") == (200, "ready\n")
    cluster.brokers[back].kill()
    under_replicated = "barnabas_under_replicated_partitions"
    assert figure(cluster, leader, under_replicated) + figure(cluster, controller, under_replicated) == 3
    lacking = int(figure(cluster, leader, under_replicated))
    cluster.cut(back, leader)  # the controller it reaches, so that it is told everything, and joins what that leads
    cluster.brokers[back].start()
    replicas = "1 replica" if lacking == 1 else f"{lacking} replicas"
    wait_until(lambda: get(cluster, back, "readyz") == (503, f"not ready: {replicas} not in sync yet\n"))
    assert get(cluster, back, "healthz") == (200, "ok\n")
    assert get(cluster, leader, "readyz") == (200, "ready\n")

    cluster.heal()
    wait_until(lambda: get(cluster, back, "readyz") == (200, "ready\n"))
    cluster.wait_in_sync()
    cluster.cut(back, leader)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1})
    for partition in range(3):
        producer.produce("t", "v", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    wait_until(lambda: figure(cluster, leader, under_replicated) == lacking)
    for counted in ("isr_expands", "isr_shrinks"):
        assert figure(cluster, leader, f"barnabas_{counted}_total") >= lacking
    wait_until(lambda: figure(cluster, back, "barnabas_replication_bytes_in_total") > 0)
    assert get(cluster, back, "readyz") == (200, "ready\n")  # once is enough


@pytest.mark.slow
def test_a_late_request_learns_that_the_broker_had_joined(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    controller = cluster.controller()
    behind, leader = (controller + 1) % 3, (controller + 2) % 3
    cluster.cut(behind, leader)  # the controller it reaches, and is told by it
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1})
    for partition in range(3):
        producer.produce("t", "v", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    server = cluster.brokers[behind].server
    assert server is not None
    wait_until(lambda: any(server.metadata.out_of_sync(behind)))
    assert get(cluster, behind, "readyz") == (200, "ready\n")
