"""Partitions that a stopping broker hands over: each state of a partition, with another broker stopping or not."""

import pytest

from barnabas.controller.operations.controlled_shutdown import plan_departure, plan_relief
from barnabas.controller.state import NO_LEADER
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


@pytest.mark.parametrize("live", [each for each in subsets(REPLICAS) if 1 in each])
def test_every_state(live: tuple[int, ...]) -> None:
    for others in subsets([broker_id for broker_id in live if broker_id != 1]):
        for old in every_state(live):
            before = cluster({0: old}, live)._replace(shutting_down=frozenset(others))
            relief = plan_relief(before, 1, EPOCH, never_alone)
            assert relief.plan.cluster.shutting_down == {1, *others}
            relieved = after(relief.plan, old)
            departure = plan_departure(relief.plan.cluster, 1, relief.followed, EPOCH, never_alone)
            new = after(departure, relieved)
            assert relieved == old or departure.told == (), "one of both"
            may_lead = [r for r in REPLICAS if r in old.isr and r in live and r not in (1, *others)]
            if old.leader == 1:
                assert relief.followed == ()
                assert relief.remaining == (() if may_lead else (("t", 0),))
                if may_lead:
                    assert new.leader == may_lead[0]
                    assert new.isr == tuple(member for member in old.isr if member not in (1, *others))
                else:
                    assert new == old
            else:
                assert relief.remaining == ()
                assert new.leader == old.leader
                assert relief.followed == (() if old.leader == NO_LEADER else (("t", 0),))
                assert (1 in new.isr) == (1 in old.isr and old.leader == NO_LEADER)


def test_a_partition_of_one_replica_is_left() -> None:
    old = state(1, (1,))
    relief = plan_relief(cluster({0: old}, live=(1, 2), replicas=(1,)), 1, EPOCH, never_alone)
    assert (relief.followed, relief.remaining, relief.plan.writes) == ((), (), ())
    assert not relief.plan.cluster.is_online(1, ("t", 0)), "it leads nothing new"
