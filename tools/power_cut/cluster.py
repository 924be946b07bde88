"""Power cuts of one of three brokers that do not sync before they acknowledge, as by default.

A power cut loses its unsynced records, although they were acknowledged: the other brokers have them. A broker that
returns with another boot id reports that, and leads no partition that another broker is in sync with
(`former_session.py`), even if it returns first. As a control, with an unchanged boot id it leads, and records are lost.
"""

import random
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from os import kill as send_signal
from signal import SIGKILL
from typing import Final

from tools.power_cut.__main__ import ONLY_PRODUCERS, write_back_some
from tools.power_cut.disk import CuttableDisk
from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import ServerProcess
from tools.soak.cluster import WORKERS, ClusterOfProcesses, soak_cluster
from tools.soak.run import NOTHING, Result
from tools.soak.workload import Amount

SESSION_S: Final = 4.0
OTHERS_DOWN_S: Final = SESSION_S + 2
"""The time for which the other brokers are down when all are: long enough for their sessions to expire."""


class OneMachine:
    """Broker 0 of a cluster, with its data on a separate disk. `has_boots` decides whether its boot id changes with a
    power cut.
    """

    def __init__(self, disk: CuttableDisk, *, has_boots: bool) -> None:
        self._disk = disk
        self._boots = count(1) if has_boots else iter(lambda: 1, None)

    def make_broker(self, overrides: Mapping[str, str], port: int) -> ServerProcess:
        """Create any broker of the cluster."""
        data_dir = self._disk.path / "data" if overrides["broker.id"] == "0" else None
        broker = BarnabasProcess(overrides, listen=f"127.0.0.1:{port}", data_dir=data_dir)
        if data_dir is not None:
            self._boot(broker)
        return broker

    def _boot(self, broker: ServerProcess) -> None:
        assert isinstance(broker, BarnabasProcess)
        broker.module = f"tools.power_cut.boot:boot-{next(self._boots)}"

    def lose_power(self, cluster: ClusterOfProcesses, chance: random.Random) -> None:
        """Cut the power and restore it; the broker is not started."""
        broker = cluster.brokers[0]
        write_back_some(self._disk, broker.log_dir, chance)
        if chance.random() < 0.5:
            self._disk.commit()
        self._disk.cut()
        broker.kill()
        self._disk.mount()
        self._boot(broker)

    def fail_alone(self, cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
        """The machine loses power and returns."""
        self.lose_power(cluster, chance)
        cluster.brokers[0].start()

    def fail_with_all(self, cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
        """The machine loses power, the processes of the others are killed, and this machine returns first."""
        first, *others = cluster.brokers
        for broker in others:
            send_signal(broker.pid, SIGKILL)
        died_s = time.monotonic()
        self.lose_power(cluster, chance)
        for broker in others:
            broker.kill()
        first.start()
        time.sleep(max(0.0, died_s + OTHERS_DOWN_S - time.monotonic()))
        with ThreadPoolExecutor(len(others)) as starters:
            for started in [starters.submit(broker.start) for broker in others]:
                started.result()


def power_cuts_of_one(
    cuts: int, *, seed: int, has_boots: bool = True, least: Amount = NOTHING
) -> tuple[Result, Counter[str], str]:
    """Cut the power of one machine repeatedly under load, and once more with all brokers down after the load. Returns
    the results as `soak_cluster` does. If records are to be lost, because the boot id does not change, only producers
    run: transactions would hang, because their coordinator lost them.

    Raises CannotMount.
    """
    with CuttableDisk() as disk:
        machine = OneMachine(disk, has_boots=has_boots)
        return soak_cluster(
            ["cut"] * cuts,
            load_s=0.7,
            seed=seed,
            workers=WORKERS if has_boots else ONLY_PRODUCERS,
            overrides={
                "zookeeper.session.timeout.ms": str(round(SESSION_S * 1000)),
                "replica.lag.time.max.ms": "30000",  # no broker leaves the ISR because the machine is busy
            },
            kinds={"cut": machine.fail_alone, "kill": machine.fail_with_all},
            make_broker=machine.make_broker,
            least=least,
            quiet=True,
        )
