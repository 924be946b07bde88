"""Random walks of one replicated partition find nothing wrong, and find each bug that is put in on purpose."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from barnabas.broker.replication.fetcher import Fetcher, Following
from barnabas.broker.replication.followers import Followers, Proposal
from barnabas.broker.replication.isr import PartitionState
from barnabas.broker.replication.partition import Partition
from tests.broker.replication.walks import Node, Walk

pytestmark = pytest.mark.slow

STEPS = 400
WALKS = 25


@pytest.mark.parametrize("seed", range(WALKS))
def test_acknowledged_records_survive_and_replicas_become_equal(seed: int) -> None:
    walk = Walk(seed)
    walk.run(STEPS)
    assert walk.acknowledged


def the_stored_isr_counts_and_not_the_largest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followers, "maximal_isr", property(lambda self: self.isr))


def a_proposed_isr_counts_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    def maximal_isr(self: Followers) -> Iterable[int]:
        return self.isr if self.proposal is None else frozenset(self.proposal.isr)

    patch.setattr(Followers, "maximal_isr", property(maximal_isr))


def the_leaders_own_end_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followers, "high_watermark", lambda _self, own_offset, *_, **__: own_offset)


def who_joins_need_not_have_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    def expansion(self: Followers, replica_id: int, _high_watermark: int, now_ms: int) -> Proposal | None:
        return real(self, replica_id, 0, now_ms)

    real = Followers.expansion
    patch.setattr(Followers, "expansion", expansion)


def who_joins_need_not_have_what_came_before_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def __init__(self: Followers, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named | {"start_offset": 0})

    real = Followers.__init__
    patch.setattr(Followers, "__init__", __init__)


def what_was_told_before_the_last_answer_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    def become_leader_or_follower(self: PartitionState, told: Any, log_end_offset: int) -> Any:
        self.partition_epoch = min(self.partition_epoch, told.partition_epoch)
        return real(self, told, log_end_offset)

    def follow(self: Followers, replicas: Any, isr: Any, partition_epoch: int) -> bool:
        self.partition_epoch = min(self.partition_epoch, partition_epoch - 1)
        return real_told(self, replicas, isr, partition_epoch)

    real, real_told = PartitionState.become_leader_or_follower, Followers.told
    patch.setattr(PartitionState, "become_leader_or_follower", become_leader_or_follower)
    patch.setattr(Followers, "told", follow)


def the_lives_of_those_who_join_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followers, "broker_epochs", lambda _self, isr: dict.fromkeys(isr, -1))


def a_fetch_of_a_diverging_log_tells_progress(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("barnabas.broker.replication.replica_fetch.is_prefix", lambda *_: True)


def a_follower_does_not_truncate(patch: pytest.MonkeyPatch) -> None:
    def truncate(_self: Node, fetcher: Fetcher, following: Following, _offset: int) -> None:
        following.log.leader_epochs.truncate_from_end(0)
        fetcher.resumed(following)

    patch.setattr(Node, "truncate", truncate)


def a_follower_truncates_to_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def obey(self: Node) -> None:
        epoch = self.partition.state.leader_epoch
        real(self)
        if not self.leads and self.partition.state.leader_epoch > epoch:
            self.log.truncate_to(self.log.high_watermark)

    real = Node.obey
    patch.setattr(Node, "obey", obey)


def a_leader_commits_with_too_few_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followers, "has_enough_in_sync", lambda *_: True)


def changes_of_partitions_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "notify", lambda *_: None)


OFTEN = (
    a_proposed_isr_counts_before_it_is_stored,
    the_leaders_own_end_is_committed,
    who_joins_need_not_have_what_is_committed,
    a_follower_does_not_truncate,
    a_leader_commits_with_too_few_in_sync,
    changes_of_partitions_are_not_told,
)
"""The bugs that one walk in five or more finds."""

SELDOM = (
    the_stored_isr_counts_and_not_the_largest,
    who_joins_need_not_have_what_came_before_the_epoch,
    what_was_told_before_the_last_answer_is_obeyed,
    the_lives_of_those_who_join_are_not_compared,
    a_fetch_of_a_diverging_log_tells_progress,
    a_follower_truncates_to_its_high_watermark,
)
"""The bugs that one walk in ten to a hundred finds."""

SEEDS = 200
"""How many walks look for a bug that is found often: they miss one that a tenth of the walks finds once in a thousand
million times."""
BUDGET = 3_000
"""How many walks look for one that is found seldom."""

full = [pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("bug", "seeds"),
    [
        *(pytest.param(bug, SEEDS, id=bug.__name__) for bug in OFTEN),
        *(pytest.param(bug, BUDGET, marks=full, id=bug.__name__) for bug in SELDOM),
    ],
)
def test_a_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the walks from seed 0 on: which one it is changes with the code, and has no name."""
    bug(monkeypatch)
    for seed in range(seeds):
        try:
            Walk(seed).run(STEPS)
        except AssertionError as found:
            print(f"seed {seed}: {found}")
            return
    pytest.fail(f"{seeds} walks found nothing")
