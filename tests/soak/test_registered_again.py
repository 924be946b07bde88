"""How long a broker that was killed is not registered once it is started again: it ends its former session itself."""

import statistics
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tools.processes.server import ServerProcess
from tools.soak.cluster import SESSION_TIMEOUT_MS, TOPIC_CONFIG, ClusterOfProcesses
from tools.waiting import PATIENCE_S, wait_until

REGISTERED_AGAIN_S = 2.0
"""The bound. Without the note of its session a broker would wait for the end of that, three times as long."""


class Registration:
    """A broker's znode, as ZooKeeper has it."""

    def __init__(self, client: KazooClient, node_id: int) -> None:
        self._client = client
        self._path = f"/brokers/ids/{node_id}"

    def epoch(self) -> int:
        """The broker epoch; -1 while it is not registered."""
        stat = self._client.exists(self._path)
        return -1 if stat is None else stat.czxid

    def wait_for_another(self, epoch: int) -> float:
        """When there is one of another epoch, by the monotonic clock. Raises TimeoutError."""
        wait_until(lambda: self.epoch() not in (-1, epoch), f"{self._path}, registered again")
        return time.monotonic()


def start_again(broker: ServerProcess, registration: Registration) -> float:
    """Kill a broker and start it; how long after the start of its process it was registered, in seconds, less what it
    waited for a processor meanwhile, which others had."""
    epoch = registration.epoch()
    assert epoch != -1
    broker.kill()
    starting = threading.Thread(target=broker.start, name="start")
    began_s = time.monotonic()
    starting.start()
    took_s = registration.wait_for_another(epoch) - began_s
    waited_s = int(Path(f"/proc/{broker.pid}/schedstat").read_text().split()[1]) / 1e9
    starting.join()
    print(f"registered after {took_s:.2f} s, {waited_s:.2f} s of which it waited for a processor")
    return took_s - waited_s


@pytest.mark.live
@pytest.mark.alone
@pytest.mark.java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [5])
def test_a_killed_broker_is_registered_again_within_two_seconds(rounds: int) -> None:
    with ClusterOfProcesses() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("t", 10, replication_factor=3, config=dict(TOPIC_CONFIG))])["t"].result()
        client = KazooClient(cluster.zookeeper.address)
        client.start(timeout=PATIENCE_S)
        try:
            took_s = [
                start_again(broker, Registration(client, node_id))
                for _ in range(rounds)
                for node_id, broker in enumerate(cluster.brokers)
            ]
        finally:
            client.stop()
            client.close()
    print(
        f"registered again after {max(took_s):.2f} s at worst, {statistics.median(took_s):.2f} s on median,"
        f" of {len(took_s)} kills; the session timeout is {SESSION_TIMEOUT_MS} ms"
    )
    assert max(took_s) <= REGISTERED_AGAIN_S
