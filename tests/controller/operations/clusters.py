"""Clusters of a few brokers and one topic, for tests of plans: all small ones."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations

from barnabas.controller.plan import Plan
from barnabas.controller.state import (
    NO_LEADER,
    BrokerRegistration,
    ClusterState,
    EndPoint,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
    TopicState,
)

EPOCH = 7
"""The controller's, in these tests."""
TOPIC_ID = bytes(15) + b"\7"
REPLICAS = (1, 2, 3)


def never_alone(_topic: str, _broker_id: int) -> bool:
    """A commit needs two replicas."""
    return False


def broker(broker_id: int, epoch: int | None = None) -> BrokerRegistration:
    """Broker N; its epoch is 100 + N unless another is given."""
    endpoint = EndPoint("PLAINTEXT", "localhost", 9090 + broker_id)
    return BrokerRegistration(broker_id, (endpoint,), epoch=100 + broker_id if epoch is None else epoch)


def state(leader: int, isr: Sequence[int], recovery: RecoveryState = RecoveryState.RECOVERED) -> PartitionState:
    """A state with leader epoch 3 and partition epoch 11."""
    return PartitionState(leader, 3, tuple(isr), 5, 11, recovery)


def cluster(
    states: Mapping[int, PartitionState], live: Sequence[int] = REPLICAS, replicas: Sequence[int] = REPLICAS
) -> ClusterState:
    """A cluster with topic t, each partition on the same `replicas`."""
    assignments = dict.fromkeys(states, ReplicaAssignment(tuple(replicas)))
    return ClusterState(
        brokers={broker_id: broker(broker_id) for broker_id in live},
        topics={"t": TopicState("t", TOPIC_ID, assignments, dict(states))},
    )


def subsets(members: Sequence[int]) -> list[tuple[int, ...]]:
    """Every subset, the empty one first."""
    return list(chain.from_iterable(combinations(members, size) for size in range(len(members) + 1)))


def every_state(live: Sequence[int]) -> Iterator[PartitionState]:
    """Each state that a partition on brokers 1, 2 and 3 can be in while these live: the leader is a live member of the
    ISR, or there is none.
    """
    for isr in subsets(REPLICAS)[1:]:
        for leader in (NO_LEADER, *isr):
            if leader == NO_LEADER or leader in live:
                yield state(leader, isr)


def after(plan: Plan, old: PartitionState, partition: int = 0) -> PartitionState:
    """The partition's state after a plan. Checks the writes and epochs: one write if the state changed, conditional on
    the known version."""
    new = plan.cluster.topics["t"].partitions[partition]
    if new == old:
        assert ("t", partition) not in plan.told
        return new
    assert ("t", partition) in plan.told
    assert new.isr, "an ISR never becomes empty"
    assert new.partition_epoch == old.partition_epoch + 1
    assert new.controller_epoch == EPOCH
    assert set(new.isr) <= set(old.isr) or new.recovery_state is RecoveryState.RECOVERING
    path = f"/brokers/topics/t/partitions/{partition}/state"
    (write,) = [group[0] for group in plan.writes if group[0].path == path]
    assert getattr(write, "version", None) == old.partition_epoch
    return new
