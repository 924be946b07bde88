"""Preferred leaders: the partitions that they lead again."""

import pytest

from barnabas.controller.operations.preferred_election import plan_preferred_elections
from tests.controller.operations.clusters import (
    EPOCH,
    REPLICAS,
    after,
    cluster,
    every_state,
    never_alone,
    state,
    subsets,
)


@pytest.mark.parametrize("live", subsets(REPLICAS))
def test_the_first_replica_leads_where_it_may(live: tuple[int, ...]) -> None:
    for old in every_state(live):
        new = after(plan_preferred_elections(cluster({0: old}, live), [("t", 0)], EPOCH, 10, never_alone), old)
        assert new.isr == old.isr
        if 1 in live and 1 in old.isr:
            assert new.leader == 1
        else:
            assert new == old


def test_preferred_elections_are_bounded_at_a_time() -> None:
    before = cluster({p: state(2, REPLICAS) for p in range(5)})
    partitions = [("t", p) for p in range(5)]
    first = plan_preferred_elections(before, partitions, EPOCH, 3, never_alone)
    assert len(first.told) == 3
    rest = plan_preferred_elections(first.cluster, partitions, EPOCH, 3, never_alone)
    assert set(rest.told) == set(partitions) - set(first.told)
