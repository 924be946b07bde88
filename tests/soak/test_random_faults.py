"""A short run of the load under random faults, on one broker and on three; `python -m tools.soak.random_faults` runs
longer."""

import random
from collections import Counter
from contextlib import AbstractContextManager, nullcontext

import pytest

from tools.soak import random_faults
from tools.soak.random_faults import SeveralBrokers, Target, soak_faults
from tools.soak.workload import Amount, Member, Recorder
from tools.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(1800)]

SEED = 20261124


@pytest.mark.full
@pytest.mark.parametrize("brokers", [1, 3])
def test_nothing_is_lost_doubled_or_torn_by_faults(brokers: int) -> None:

    def enough(happened: Counter[str]) -> bool:
        return len(happened) >= 5 and happened["overlapping"] >= 3

    least = Amount(acknowledged=500, transactions=10)
    result, happened = soak_faults(30, brokers=brokers, seed=SEED, enough=enough, least=least)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, happened)
    assert result.crashes >= 2
    assert enough(happened), happened


@pytest.mark.full
def test_a_broken_disk_and_a_hanging_transaction_do_no_harm() -> None:
    """The broker is mended while clients' requests fail."""
    verbs = [random_faults._disk_fails, random_faults._hangs, random_faults._fails]

    def enough(happened: Counter[str]) -> bool:
        return happened["disk fails"] > 0 and happened["hangs"] > 0

    result, happened = soak_faults(6, brokers=3, seed=SEED, verbs=verbs, enough=enough)
    assert result.is_clean, (dict(result.findings.anomalies), result.problems, happened)
    assert enough(happened), happened


@pytest.mark.full
def test_a_fault_that_does_harm_is_found() -> None:
    """Committed offsets that are forgotten: the group's next member finds that they have moved back."""

    def loses_offsets(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
        target.faults.lose_offsets(Member.GROUP, topic)
        return nullcontext()

    result, _ = soak_faults(3, brokers=1, seed=SEED, verbs=[loses_offsets])
    assert not result.is_clean
    assert any("committed offset" in problem for problem in result.problems), result.problems


def test_the_states_of_a_member_and_its_brokers_are_told() -> None:
    """For a run in which members get nothing done: whose fault is it?"""
    with SeveralBrokers(3) as target:
        target.started.create_topic("t").produce("1")
        member = Member(1, target.bootstrap_servers, "t", 1, Recorder(), SEED)
        member.start()
        wait_until(lambda: member.done and "active" in member.standing(), member.standing)
        told = [*member.standing().splitlines(), *target.standing().splitlines()]
        member.stop()
        member.join()
    assert any("join_state" in line and "steady" in line for line in told)
    assert any(line.startswith("  partition 0: fetch_state active, ") for line in told)
    for broker in range(3):
        assert any(line.startswith(f"broker {broker}: t-0 from 0 to 1, committed to ") for line in told)
    assert any("Fetch" in line and "Member-1" in line for line in told)
