"""A short run of the harness, and proof that it finds bugs that are planted for it. `make soak` runs it for longer."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from tools.soak.crashes import kill
from tools.soak.delayed_commits import DelayedCommitter
from tools.soak.keyed_workers import KeyedProducer, KeyedReader, KeyedTransactionalProducer, compacted_topic
from tools.soak.planted import BUGS
from tools.soak.run import NOTHING, WORKERS, Result, soak
from tools.soak.workload import (
    TOPIC_PREFIX,
    Amount,
    Committer,
    Deserter,
    PlainProducer,
    Reader,
    TransactionalProducer,
    Worker,
    Workers,
)

pytestmark = pytest.mark.slow

SEED = 20261121
FEW_WORKERS: Workers = ((PlainProducer, 2), (TransactionalProducer, 2), (Reader, 1))
KEYED_WORKERS: Workers = ((KeyedProducer, 1), (KeyedTransactionalProducer, 1), (KeyedReader, 1))


class Idle(Worker):
    """Asks for nothing, and is told nothing."""

    def run_once(self) -> None:
        self.pause(0.1)


class UnhurriedCommitter(Committer):
    """Rests after each commit. A broker that has one more, of which the client does not know, hides the loss of the
    one before; so, most crashes come when there is none."""

    def run_once(self) -> None:
        super().run_once()
        self.pause(0.05)


full = [pytest.mark.full, pytest.mark.timeout(1800)]


def is_compacted_everywhere(result: Result) -> bool:
    """Logs were compacted, those of coordinators too, and a crash came before compaction had time to settle."""
    return len(result.compactions) >= 3 and result.crash_stages.total() >= 1


@pytest.mark.live
@pytest.mark.java
@pytest.mark.parametrize(
    ("crashes", "crash_every_s", "least", "is_timed"),
    [
        pytest.param(1, 1, Amount(acknowledged=2_000, transactions=20, commits=20), False, id="once"),
        pytest.param(
            6,
            2.5,
            Amount(acknowledged=10_000, transactions=100, commits=100),
            True,
            marks=[*full, pytest.mark.alone],
            id="six times, and readers are in time",
        ),
    ],
)
def test_nothing_is_lost_doubled_or_torn_under_kill_9(
    crashes: int, crash_every_s: float, least: Amount, is_timed: bool
) -> None:
    result = soak(
        0,
        crash=kill,
        crashes=crashes,
        crash_every_s=crash_every_s,
        seed=SEED,
        reply_loss=0.005,
        least=least,
        enough=is_compacted_everywhere if is_timed else lambda _: True,
        is_timed=is_timed,
        quiet=True,
    )
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)
    assert result.crashes > crashes
    assert result.done.keys() == {kind.__name__ for kind, _ in WORKERS}
    assert all(result.done.values())
    if is_timed:
        assert is_compacted_everywhere(result), (result.compactions, result.crash_stages)
        assert result.compactions.keys() == {
            compacted_topic(f"{TOPIC_PREFIX}1"),
            "__consumer_offsets",
            "__transaction_state",
        }


@pytest.mark.live
@pytest.mark.full
def test_a_long_run_is_made_of_rounds() -> None:
    result = soak(
        0, crash=kill, crashes=3, crash_every_s=0.5, seed=SEED, round_records=1, workers=FEW_WORKERS, quiet=True
    )
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)
    assert (result.rounds, result.crashes) == (2, 4)  # one under load and one without in each


@pytest.mark.live
@pytest.mark.full
def test_a_kind_of_worker_that_gets_nothing_done_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.soak.run.PATIENCE_S", 1.0)
    monkeypatch.setattr("tools.soak.run.ACKNOWLEDGED_BETWEEN_CRASHES", 0)
    result = soak(0, crash=kill, crash_every_s=0.1, seed=SEED, workers=((PlainProducer, 1), (Idle, 1)), quiet=True)
    assert any("Idle got nothing done" in problem for problem in result.problems), result.problems


CRASHES = 60
"""How many crashes there are until a planted bug is found; some show only when one meets a batch, or a reader a place,
of the right kind."""


def look_for(bug: str, workers: Workers, *, reply_loss: float = 0.0, least: Amount = NOTHING) -> Result:
    """Rounds of a few crashes each until something is found."""
    return soak(
        0,
        crash=kill,
        crashes=CRASHES,
        crash_every_s=1.5,
        seed=SEED,
        plant=bug,
        reply_loss=reply_loss,
        workers=workers,
        round_crashes=2,
        least=least,
        is_timed=False,
        quiet=True,
    )


@pytest.mark.live
def test_a_planted_bug_is_found() -> None:
    """The control of the gate: each transaction that was aborted shows this one."""
    result = look_for("aborted-index-empty", FEW_WORKERS, least=Amount(aborted=5))
    assert "torn-transaction" in result.findings.anomalies


@pytest.mark.live
def test_a_planted_loss_is_found() -> None:
    """The control of the gate: each pass of compaction loses some of the newest values."""
    result = look_for("compaction-drops-newest", KEYED_WORKERS)
    assert "lost-newest" in result.findings.anomalies


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bug", "anomaly"),
    [
        ("dedupe-off", "duplicate"),
        ("lso-is-high-watermark", "G1a"),
        ("abort-marker-skipped", "G1a"),
        ("producers-forgotten-in-recovery", "duplicate"),
        ("index-names-the-batch-after", "poll-skip"),
    ],
)
def test_planted_bugs_are_found(bug: str, anomaly: str) -> None:
    assert anomaly in look_for(bug, FEW_WORKERS, reply_loss=0.02).findings.anomalies


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_recovery_that_checks_no_batch_is_found() -> None:
    """In a process of its own. librdkafka may abort that, as it believes the counts in a damaged batch: found, too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, suppress(BrokenProcessPool):
        result = pool.submit(look_for, "crc-unchecked-in-recovery", FEW_WORKERS).result()
        assert "unknown-value" in result.findings.anomalies


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bug", "anomaly"),
    [("compacted-log-cut-at-gap", "lost-newest"), ("deletions-supersede-nothing", "deleted-key")],
)
def test_planted_bugs_of_compaction_are_found(bug: str, anomaly: str) -> None:
    assert anomaly in look_for(bug, KEYED_WORKERS).findings.anomalies


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bug", "committer"),
    [
        ("commits-answered-early", UnhurriedCommitter),
        ("commits-of-old-generations-accepted", DelayedCommitter),
    ],
)
def test_commits_that_move_back_are_found(bug: str, committer: type[Worker]) -> None:
    result = look_for(bug, ((PlainProducer, 1), (committer, 1)))
    assert any("committed offset" in problem for problem in result.problems), result.problems
    assert result.findings.is_valid


@pytest.mark.live
@pytest.mark.full
def test_transactions_that_stay_open_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.soak.run.TRANSACTION_TIMEOUT_S", Deserter.TIMEOUT_S)
    result = soak(
        0,
        crash=kill,
        crash_every_s=1,
        seed=SEED,
        plant="transactions-never-time-out",
        workers=((PlainProducer, 1), (Deserter, 1)),
        quiet=True,
    )
    assert any(problem.startswith("transactions are open") for problem in result.problems), result.problems


def test_each_planted_bug_is_looked_for() -> None:
    """Each bug of tools/soak/planted.py is named by a test of a soak or of power cuts."""
    folder = Path(__file__).parent
    texts = "".join((folder / name).read_text() for name in ("test_soak.py", "test_power_cut.py"))
    assert [bug for bug in BUGS if f'"{bug}"' not in texts] == []
