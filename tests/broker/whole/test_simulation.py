"""A whole broker under operations in random order, and in an order of callbacks that is drawn from a seed; what that
finds when mistakes are put back (tools/broker_simulation.py, shuffled_loop.py).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.broker.coordinators.transactions import machine
from barnabas.broker.coordinators.transactions.events import Effects, ProducerReply, TimeOut
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.storage.local_log import LocalLog
from barnabas.wire.errors import ErrorCode
from tools.broker_simulation import simulate


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), marks=pytest.mark.slow),
        pytest.param(range(8, 308), marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
)
def test_whatever_comes_first_nothing_is_wrong(seeds: range, tmp_path: Path) -> None:
    """Acknowledged when it is on the disk, when it is written, or when each record was flushed, by turns."""
    counts: dict[str, int] = {}
    for seed in seeds:
        print(f"seed {seed}")
        configs = [
            {},
            {"barnabas_flush_before_ack": "false"},
            {},
            {"barnabas_flush_before_ack": "false", "log_flush_interval_messages": "1"},
        ]
        wrong, happened = simulate(seed, tmp_path / str(seed), seconds=6, **configs[seed % 4])  # type: ignore[arg-type]
        assert wrong == [], f"seed {seed}"
        counts = {what: counts.get(what, 0) + happened.get(what, 0) for what in counts | happened}
    print(counts)
    for what in ("acknowledged", "ended", "fenced", "committed", "deleted", "expanded", "configured", "fetched"):
        assert counts[what] >= len(seeds), what


def test_a_seed_tells_the_same_story_again(tmp_path: Path) -> None:
    told = [simulate(5, tmp_path / str(life), seconds=3)[1] for life in range(2)]
    assert told[0] == told[1]


def deleted_logs_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush pass does not notice that a log of its list was deleted."""
    move_to = LocalLog.move_to

    def move(log: LocalLog, directory: str) -> None:
        move_to(log, directory)
        log._failure = None

    monkeypatch.setattr(LocalLog, "move_to", move)


def time_outs_look_at_the_id_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is open when it has its turn is aborted."""

    def time_out(decision: machine._Decision, event: TimeOut) -> Effects:
        known = decision.known
        if (
            known is None
            or decision.waits
            or known.state is not TransactionState.ONGOING
            or known.producer_id != event.producer_id
        ):
            return Effects(reply=ProducerReply(ErrorCode.CONCURRENT_TRANSACTIONS))
        return decision._fence(event.fresh_producer_id, ProducerReply(ErrorCode.NONE))

    monkeypatch.setitem(machine._DECIDERS, TimeOut, time_out)


@pytest.mark.parametrize(
    ("put_back", "found_as"),
    [(deleted_logs_can_fail, "was deleted while it was flushed"), (time_outs_look_at_the_id_only, "was fenced")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_finds(
    put_back: Callable[[pytest.MonkeyPatch], None], found_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(monkeypatch)
    for seed in range(20):
        wrong, _ = simulate(seed, tmp_path / str(seed), seconds=16, job_s_max=0.2)
        if any(found_as in each for each in wrong):
            print(f"seed {seed}: {wrong}")
            return
    pytest.fail("no seed finds it")
