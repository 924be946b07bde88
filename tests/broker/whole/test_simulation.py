"""A whole broker under operations in random order, and in an order of callbacks that is drawn from a seed; what that
finds when mistakes are put back (tests/support/broker_simulation.py, tools/simulation/world/loop.py).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from barnabas.broker.coordinators.transactions import machine
from barnabas.broker.coordinators.transactions.events import Effects, ProducerReply, TimeOut
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.timers import SLICE_S, Timers
from barnabas.controller.topics import NewTopic
from barnabas.storage.log_health import LogHealth
from barnabas.storage.producer_state import BatchMetadata, ProducerState
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.record_batch import RecordBatchHeader
from tests.support.broker_simulation import INTERNAL_TOPICS, Simulation, Topic, Transaction, simulate
from tests.support.watched_calls import WatchedCalls

pytestmark = pytest.mark.slow


def simulate_all(seeds: range, tmp_path: Path) -> Counter[str]:
    """Nothing is wrong with any of the seeds; what happened in all of them together. Acknowledged when it is on the
    disk, when it is written, or when each record was flushed, by turns."""
    counts: Counter[str] = Counter()
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
        counts.update(happened)
    print(counts)
    return counts


def test_whatever_comes_first_nothing_is_wrong(tmp_path: Path) -> None:
    """A few seeds, which hold for any: what happens in them changes with the code."""
    assert simulate_all(range(8), tmp_path)["acknowledged"]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(8, 308, 75))
def test_whatever_comes_first_in_many_runs_nothing_is_wrong(first: int, tmp_path: Path) -> None:
    seeds = range(first, first + 75)
    counts = simulate_all(seeds, tmp_path)
    for what in ("acknowledged", "ended", "fenced", "committed", "deleted", "expanded", "configured", "fetched"):
        assert counts[what] >= len(seeds), what


def test_a_seed_tells_the_same_story_again(tmp_path: Path) -> None:
    told = [simulate(5, tmp_path / str(life), seconds=3)[1] for life in range(2)]
    assert told[0] == told[1]


def test_a_seed_tells_the_same_story_on_a_busy_machine(tmp_path: Path) -> None:
    """One that stands still at each timer, for longer than timers may go on before others have a turn."""
    idle = simulate(5, tmp_path / "idle", seconds=1)
    with WatchedCalls(lambda _: time.sleep(2 * SLICE_S), Timers._fire_next):
        busy = simulate(5, tmp_path / "busy", seconds=1)
    assert busy == idle


def test_sequences_go_on_when_a_topic_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that a client sends for the old topic of the same name arrives in the new one. Were its sequence used
    there again, the broker would have to take another record for a retry, which it answers and does not write.
    """

    async def run(simulation: Simulation) -> None:
        for name in INTERNAL_TOPICS:
            simulation.broker.auto_topics.create([name])
        controller = simulation.broker.controller
        old, new = Topic("t0", 1), Topic("t0", 1)
        await controller.create_topics([NewTopic("t0", 1, 1)])
        request = InitProducerIdRequest(transactional_id="p", transaction_timeout_ms=60_000)
        _, reply = await simulation.until_served(partial(simulation.ask, request, 4))
        producer = (reply.producer_id, reply.producer_epoch)
        await controller.delete_topics(["t0"])
        await controller.create_topics([NewTopic("t0", 1, 1)])
        simulation.topics["t0"] = new
        sequences: dict[tuple[str, int], int] = {}
        for topic in (old, new):
            transaction = Transaction()
            simulation.transactions.append(transaction)
            assert await simulation.write(transaction, topic, "p", producer, sequences, 0) is ErrorCode.NONE
            error, _ = await simulation.end(transaction, "p", producer, 0, is_commit=True)
            assert error is ErrorCode.NONE
        await asyncio.sleep(10)
        simulation.check()

    monkeypatch.setattr(Simulation, "run", run)
    for seed in range(4):
        wrong, happened = simulate(seed, tmp_path / str(seed), seconds=1)
        assert wrong == [], f"seed {seed}"
        assert happened == {"ended": 2}


def deleted_logs_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush pass does not notice that a log of its list was deleted."""
    monkeypatch.setattr(LogHealth, "note_deletion", lambda health: None)


def time_outs_look_at_the_id_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout aborts any transaction that is open at its turn."""

    def time_out(decision: machine._Decision, event: TimeOut) -> Effects:
        known = decision.known
        if (
            known is None
            or decision.waits
            or known.state is not TransactionState.ONGOING
            or known.producer_id != event.producer_id
        ):
            return machine._refuse_producer(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        return decision._fence(event, ProducerReply(ErrorCode.NONE))

    monkeypatch.setitem(machine._DECIDERS, TimeOut, time_out)


def every_batch_is_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer's second batch in its epoch gets a response, and is not written."""
    check = ProducerState.check

    def check_again(state: ProducerState, header: RecordBatchHeader, origin: AppendOrigin) -> BatchMetadata | None:
        known = check(state, header, origin)
        entry = state.producers.get(header.producer_id)
        if entry is None or not entry.batches or entry.epoch != header.producer_epoch:
            return known
        return entry.batches[-1]

    monkeypatch.setattr(ProducerState, "check", check_again)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("put_back", "found_as"),
    [
        (deleted_logs_can_fail, "was deleted while it was flushed"),
        (time_outs_look_at_the_id_only, "was fenced"),
        (every_batch_is_a_retry, "of a transaction at"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_finds(
    put_back: Callable[[pytest.MonkeyPatch], None], found_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(monkeypatch)
    for seed in range(200):
        wrong, _ = simulate(seed, tmp_path / str(seed), seconds=16, job_s_max=0.2)
        if any(found_as in each for each in wrong):
            print(f"seed {seed}: {wrong}")
            return
    pytest.fail("no seed finds it")
