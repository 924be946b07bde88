"""A short run of the harness, and proof that it finds bugs that are planted for it. `make soak` runs it for longer."""

import pytest

from tools.soak.crashes import kill
from tools.soak.run import soak
from tools.soak.workload import Committer, PlainProducer, Reader, TransactionalProducer, Workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SEED = 20261121
FEW_WORKERS: Workers = ((PlainProducer, 2), (TransactionalProducer, 2), (Reader, 1))


@pytest.mark.java
def test_nothing_is_lost_doubled_or_torn_under_kill_9() -> None:
    result = soak(15, crash=kill, crash_every_s=2.5, seed=SEED, reply_loss=0.005, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)
    # Enough happened for the silence to mean something, also on a machine that is busy with other things.
    assert result.crashes >= 2
    assert result.findings.acknowledged >= 2_000
    assert result.findings.transactions >= 20
    assert result.commits >= 20


@pytest.mark.parametrize(
    ("bug", "anomaly"),
    [
        ("dedupe-off", "duplicate"),
        ("lso-is-high-watermark", "G1a"),
        ("aborted-index-empty", "torn-transaction"),
        ("abort-marker-skipped", "G1a"),
        ("crc-unchecked-in-recovery", "unknown-value"),
    ],
)
def test_planted_bugs_are_found(bug: str, anomaly: str) -> None:
    result = soak(
        4,
        crash=kill,
        crashes=2,
        crash_every_s=2,
        seed=SEED,
        plant=bug,
        reply_loss=0.02,
        workers=FEW_WORKERS,
        quiet=True,
    )
    assert anomaly in result.findings.anomalies


def test_a_commit_that_is_answered_before_it_is_written_is_found() -> None:
    result = soak(
        2,
        crash=kill,
        crashes=1,
        crash_every_s=2,
        seed=SEED,
        plant="commits-answered-early",
        workers=((PlainProducer, 1), (Committer, 1)),
        quiet=True,
    )
    assert any("committed offset" in problem for problem in result.problems), result.problems
    assert result.findings.is_valid
