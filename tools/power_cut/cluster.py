"""Power cuts of one of three brokers that do not sync before they acknowledge, as by default.

Its unsynced records are lost on one machine and acknowledged all the same: the others have them. A broker that comes
back after another boot says so, and leads nothing that another one was in sync for (`former_session.py`), also where it
is the first to come back. With the boot's id unchanged it does, and records are lost: the control.
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

from tools.barnabas_process import BarnabasProcess
from tools.power_cut.__main__ import ONLY_PRODUCERS, write_back_some
from tools.power_cut.disk import CuttableDisk
from tools.server_process import ServerProcess
from tools.soak.cluster import WORKERS, ClusterOfProcesses, soak_cluster
from tools.soak.run import NOTHING, Result
from tools.soak.workload import Amount

SESSION_S: Final = 4.0
OTHERS_DOWN_S: Final = SESSION_S + 2
"""For how long the others are down where all are: their sessions are over before."""


class OneMachine:
    """Broker 0 of a cluster, whose data are on a disk of its own. `has_boots` says whether its boot's id is another one
    after a power cut."""

    def __init__(self, disk: CuttableDisk, *, has_boots: bool) -> None:
        self._disk = disk
        self._boots = count(1) if has_boots else iter(lambda: 1, None)

    def make_broker(self, overrides: Mapping[str, str], port: int) -> ServerProcess:
        """Any broker of the cluster."""
        data_dir = self._disk.path / "data" if overrides["broker.id"] == "0" else None
        broker = BarnabasProcess(overrides, listen=f"127.0.0.1:{port}", data_dir=data_dir)
        if data_dir is not None:
            self._boot(broker)
        return broker

    def _boot(self, broker: ServerProcess) -> None:
        assert isinstance(broker, BarnabasProcess)
        broker.module = f"tools.power_cut.boot:boot-{next(self._boots)}"

    def lose_power(self, cluster: ClusterOfProcesses, chance: random.Random) -> None:
        """Cut the power, and have it back; the broker is not started."""
        broker = cluster.brokers[0]
        write_back_some(self._disk, broker.log_dir, chance)
        if chance.random() < 0.5:
            self._disk.commit()
        self._disk.cut()
        broker.kill()
        self._disk.mount()
        self._boot(broker)

    def fail_alone(self, cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
        """The machine goes down and comes back."""
        self.lose_power(cluster, chance)
        cluster.brokers[0].start()

    def fail_with_all(self, cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
        """The machine goes down, the processes of the others are killed, and it is the first that is back."""
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
    """So many power cuts of one machine under load, and one more with all brokers down when the load is over; what came
    of it as `soak_cluster` has it. Where records are to be lost, because the boot's id does not change, only producers
    work: transactions would hang, for their coordinator forgot them.

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
                "replica.lag.time.max.ms": "30000",  # nobody leaves the ISR because the machine is busy
            },
            kinds={"cut": machine.fail_alone, "kill": machine.fail_with_all},
            make_broker=machine.make_broker,
            least=least,
            quiet=True,
        )
