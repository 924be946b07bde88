"""A few power cuts under load, and proof that they are some. `python -m tools.power_cut` makes more of them."""

import os
from collections.abc import Iterator

import pytest

from tests.support.required import tool_missing
from tools.power_cut.__main__ import power_cuts
from tools.power_cut.disk import CannotMount, CuttableDisk
from tools.soak.workload import Amount

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = 20261121


@pytest.fixture(scope="module", autouse=True)
def disk() -> Iterator[CuttableDisk]:
    try:
        with CuttableDisk() as disk:
            yield disk
    except CannotMount as reason:
        tool_missing(f"this machine does not let us mount an image: {reason}")


def test_a_cut_keeps_what_was_synced_and_nothing_else(disk: CuttableDisk) -> None:
    synced, unsynced, renamed = disk.path / "synced", disk.path / "unsynced", disk.path / "renamed"
    synced.write_bytes(b"old")
    with synced.open("rb") as file:
        os.fsync(file.fileno())
    with synced.open("ab") as file:
        file.write(b", and new")
    unsynced.write_bytes(b"x" * 100_000)
    synced.rename(renamed)

    disk.cut()
    with pytest.raises(OSError, match="Input/output error"):
        unsynced.write_bytes(b"y")
    disk.mount()

    assert synced.read_bytes() == b"old"
    assert not renamed.exists()
    assert not unsynced.exists() or unsynced.read_bytes() == b""


@pytest.mark.live
@pytest.mark.full
def test_nothing_acknowledged_is_lost_with_the_flush_before_it() -> None:
    least = Amount(acknowledged=1_000, transactions=10, commits=10)
    result = power_cuts(3, flush=True, seed=SEED, cut_every_s=2.5, least=least, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)


@pytest.mark.live
@pytest.mark.full
def test_without_the_flush_acknowledged_records_are_lost() -> None:
    assert power_cuts(1, flush=False, seed=SEED, cut_every_s=2, quiet=True).lost


@pytest.mark.live
@pytest.mark.full
def test_a_flush_that_does_not_wait_for_the_disk_is_found() -> None:
    assert power_cuts(1, flush=True, plant="fsync-is-a-no-op", seed=SEED, cut_every_s=2, quiet=True).lost
