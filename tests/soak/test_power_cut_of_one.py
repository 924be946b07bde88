"""One of three machines loses its power, without a flush before acknowledgements: the others have what it lost."""

from collections.abc import Iterator

import pytest

from tests.support.required import tool_missing
from tools.power_cut.cluster import power_cuts_of_one
from tools.power_cut.disk import CannotMount, CuttableDisk
from tools.soak.workload import Amount

pytestmark = [pytest.mark.full, pytest.mark.live, pytest.mark.java, pytest.mark.timeout(1800)]

SEED = 20261128


@pytest.fixture(scope="module", autouse=True)
def may_mount() -> Iterator[None]:
    try:
        with CuttableDisk():
            yield
    except CannotMount as reason:
        tool_missing(f"this machine does not let us mount an image: {reason}")


def test_no_record_is_lost_if_the_cut_machine_is_back_first() -> None:
    least = Amount(acknowledged=500, transactions=5)
    result, happened, log = power_cuts_of_one(1, seed=SEED, least=least)
    print(f"{result.findings.acknowledged} records acknowledged, {result.lost} lost")
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, log[-20_000:])
    assert happened == {"cut": 1, "kill": 1}


def test_without_another_boot_id_acknowledged_records_are_lost() -> None:
    result, _, _ = power_cuts_of_one(0, seed=SEED, has_boots=False)
    print(f"{result.findings.acknowledged} records acknowledged, {result.lost} lost")
    assert result.lost
