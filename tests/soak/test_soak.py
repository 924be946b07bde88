"""A short run of the harness, and proof that it finds bugs that are planted for it. `make soak` runs it for longer."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context

import pytest

from tools.soak.crashes import kill
from tools.soak.delayed_commits import DelayedCommitter
from tools.soak.keyed_workers import KeyedProducer, KeyedReader, KeyedTransactionalProducer, compacted_topic
from tools.soak.run import WORKERS, soak
from tools.soak.workload import (
    TOPIC_PREFIX,
    Committer,
    Deserter,
    PlainProducer,
    Reader,
    TransactionalProducer,
    Worker,
    Workers,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

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


@pytest.mark.java
def test_nothing_is_lost_doubled_or_torn_under_kill_9() -> None:
    result = soak(15, crash=kill, crash_every_s=2.5, seed=SEED, reply_loss=0.005, quiet=True)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)
    # Enough happened for the silence to mean something, also on a machine that is busy with other things. That every
    # kind of worker did something is the harness's own concern.
    assert result.crashes >= 2
    assert result.findings.acknowledged >= 2_000
    assert result.findings.transactions >= 20
    assert result.commits >= 20
    assert result.done.keys() == {kind.__name__ for kind, _ in WORKERS}
    assert all(result.done.values())
    # Logs were compacted, those of coordinators too, and a crash came before compaction had time to settle.
    assert result.compactions.keys() == {
        compacted_topic(f"{TOPIC_PREFIX}1"),
        "__consumer_offsets",
        "__transaction_state",
    }
    assert result.crash_stages.total() >= 1


@pytest.mark.full
def test_a_long_run_is_made_of_rounds() -> None:
    result = soak(
        0, crash=kill, crashes=3, crash_every_s=0.5, seed=SEED, round_records=1, workers=FEW_WORKERS, quiet=True
    )
    assert result.is_clean, (dict(result.findings.anomalies), result.problems)
    assert (result.rounds, result.crashes) == (2, 4)  # one under load and one without in each


def test_a_kind_of_worker_that_gets_nothing_done_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.soak.run.PATIENCE_S", 1.0)
    monkeypatch.setattr("tools.soak.run.ACKNOWLEDGED_BETWEEN_CRASHES", 0)
    result = soak(0, crash=kill, crash_every_s=0.1, seed=SEED, workers=((PlainProducer, 1), (Idle, 1)), quiet=True)
    assert any("Idle got nothing done" in problem for problem in result.problems), result.problems


@pytest.mark.parametrize(
    ("bug", "anomaly", "crashes"),
    [
        ("dedupe-off", "duplicate", 2),
        ("lso-is-high-watermark", "G1a", 2),
        ("aborted-index-empty", "torn-transaction", 2),
        ("abort-marker-skipped", "G1a", 2),
        # These show only when a crash meets a batch, or a reader a place, of the right kind.
        pytest.param("producers-forgotten-in-recovery", "duplicate", 6, marks=pytest.mark.full),
        pytest.param("index-names-the-batch-after", "poll-skip", 6, marks=pytest.mark.full),
    ],
)
def test_planted_bugs_are_found(bug: str, anomaly: str, crashes: int) -> None:
    assert anomaly in _anomalies(bug, crashes)


def test_a_recovery_that_checks_no_batch_is_found() -> None:
    """In a process of its own. librdkafka may abort that, as it believes the counts in a damaged batch: found, too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, suppress(BrokenProcessPool):
        assert "unknown-value" in pool.submit(_anomalies, "crc-unchecked-in-recovery", 2).result(120)


def _anomalies(bug: str, crashes: int) -> set[str]:
    result = soak(
        4,
        crash=kill,
        crashes=crashes,
        crash_every_s=2,
        seed=SEED,
        plant=bug,
        reply_loss=0.02,
        workers=FEW_WORKERS,
        quiet=True,
    )
    return set(result.findings.anomalies)


@pytest.mark.parametrize(
    ("bug", "anomaly", "seconds"),
    [
        ("compaction-drops-newest", "lost-newest", 4),
        pytest.param("compacted-log-cut-at-gap", "lost-newest", 10, marks=pytest.mark.full),
        pytest.param("deletions-supersede-nothing", "deleted-key", 20, marks=pytest.mark.full),
    ],
)
def test_planted_bugs_of_compaction_are_found(bug: str, anomaly: str, seconds: float) -> None:
    result = soak(
        seconds, crash=kill, crashes=2, crash_every_s=2, seed=SEED, plant=bug, workers=KEYED_WORKERS, quiet=True
    )
    assert anomaly in result.findings.anomalies


@pytest.mark.parametrize(
    ("bug", "committer"),
    [
        ("commits-answered-early", UnhurriedCommitter),
        pytest.param("commits-of-old-generations-accepted", DelayedCommitter, marks=pytest.mark.full),
    ],
)
def test_commits_that_move_back_are_found(bug: str, committer: type[Worker]) -> None:
    result = soak(
        2,
        crash=kill,
        crashes=4,
        crash_every_s=1,
        seed=SEED,
        plant=bug,
        workers=((PlainProducer, 1), (committer, 1)),
        quiet=True,
    )
    assert any("committed offset" in problem for problem in result.problems), result.problems
    assert result.findings.is_valid


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
