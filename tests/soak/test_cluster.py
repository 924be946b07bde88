"""Three brokers on a real ZooKeeper under load: killed, stopped beyond their session, all at once, expired."""

import random

import pytest

from tools.soak.cluster import plan, soak_cluster, soak_one_command
from tools.soak.workload import Amount

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.java, pytest.mark.timeout(1800)]

SEED = 20261123


@pytest.mark.full
def test_nothing_is_lost_doubled_or_torn_whichever_brokers_die() -> None:
    faults = plan(kills=10, stops=3, alls=2, expirations=1, chance=random.Random(SEED))
    least = Amount(acknowledged=5_000, transactions=50, commits=50)
    result, happened, log = soak_cluster(faults, load_s=0.7, seed=SEED, least=least, is_timed=False, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, log[-20_000:])
    assert happened == {"kill": 11, "stop": 3, "all": 2, "expire": 1}
    assert "Traceback" not in log, log[log.index("Traceback") - 2_000 :][:6_000]


@pytest.mark.full
def test_nothing_is_lost_while_zookeeper_is_away() -> None:
    """It stands still, and is killed, for less and for longer than a session."""
    faults = plan(kills=0, stops=0, alls=0, expirations=0, chance=random.Random(SEED), zookeeper_stops=4)
    least = Amount(acknowledged=1_000)
    result, happened, log = soak_cluster(faults, load_s=0.7, seed=SEED, least=least, is_timed=False, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, log[-20_000:])
    assert happened == {"zookeeper stops": 2, "zookeeper killed": 2, "kill": 1}
    assert "Traceback" not in log, log[log.index("Traceback") - 2_000 :][:6_000]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.full)])
def test_nothing_is_lost_when_brokers_of_one_command_are_killed(kills: int) -> None:
    """`barnabas serve --brokers 3`; each broker is killed less often than makes the parent give up."""
    result, happened, log = soak_one_command(
        kills,
        load_s=1 if kills < 5 else 4,
        seed=SEED,
        least=Amount(acknowledged=1_000, transactions=10, commits=10),
        is_timed=False,
        quiet=True,
    )
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, log[-20_000:])
    assert happened == {"kill": kills}
    assert log.count("was killed by SIGKILL: it is started again") == kills
    assert "Traceback" not in log, log[log.index("Traceback") - 2_000 :][:6_000]
