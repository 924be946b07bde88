"""A short run of the harness, and proof that it finds bugs that are planted for it. `make soak` runs it for longer."""

import pytest

from tools.soak.__main__ import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SEED = 20261121


def test_nothing_is_lost_doubled_or_torn_under_kill_9() -> None:
    result = soak(15, kill_every_s=2.5, seed=SEED, reply_loss=0.005, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.moved_back, result.errors)
    # Enough happened for the silence to mean something, also on a machine that is busy with other things.
    assert result.kills >= 2
    assert result.findings.acknowledged >= 2_000
    assert result.findings.transactions >= 20
    assert result.commits >= 20


@pytest.mark.parametrize(
    ("bug", "anomaly"),
    [("dedupe-off", "duplicate"), ("lso-is-high-watermark", "G1a"), ("aborted-index-empty", "torn-transaction")],
)
def test_planted_bugs_are_found(bug: str, anomaly: str) -> None:
    result = soak(8, kill_every_s=4, seed=SEED, plant=bug, reply_loss=0.02, quiet=True)
    assert anomaly in result.findings.anomalies
