"""Placement of the replicas of new partitions.

First replicas go round-robin over the brokers, from a random one on; the others follow at a distance that grows by one
with every round, so that the partitions led by one broker have their followers on different brokers. If all brokers
have a rack, the brokers are first ordered so that racks alternate, and a replica goes to a rack without one as long as
there is such a rack.

*Source*: kafka 3.9.1 `AdminUtils.assignReplicasToBrokers`.
"""

from collections.abc import Callable, Mapping, Sequence

RandomIndex = Callable[[int], int]
"""`random_index(n)` draws an integer from 0 to n - 1."""


class PlacementError(Exception):
    """The requested assignment is impossible; the message says why."""


def assign_replicas(
    brokers: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    random_index: RandomIndex,
    *,
    first_partition: int = 0,
    start_index: int | None = None,
) -> dict[int, tuple[int, ...]]:
    """The replicas of `partition_count` partitions from `first_partition` on.

    `brokers` maps ids to racks (None = no rack known). `start_index` fixes the first broker and the first distance
    instead of drawing them: new partitions of an existing topic continue from its partition 0.

    Raises: PlacementError if there are fewer brokers than replicas, or if only some brokers have a rack.
    """
    assert partition_count > 0, f"{partition_count} partitions"
    assert replication_factor > 0, f"{replication_factor} replicas"
    if replication_factor > len(brokers):
        # The message of StripedReplicaPlacer of Kafka 4.3; there are no cordoned log directories here.
        raise PlacementError(
            f"The target replication factor of {replication_factor} cannot be reached because only {len(brokers)} "
            "broker(s) are registered."
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if racks and len(racks) < len(brokers):
        raise PlacementError("Some brokers have a rack and others have none.")
    ordered = rack_alternated(racks) if racks else sorted(brokers)
    start = random_index(len(ordered)) if start_index is None else start_index
    shift = random_index(len(ordered)) if start_index is None else start_index
    assignment = {}
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % len(ordered) == 0:
            shift += 1
        first = (partition + start) % len(ordered)
        if racks:
            assignment[partition] = _across_racks(ordered, racks, first, shift, replication_factor)
        else:
            followers = (ordered[_follower_index(first, shift, j, len(ordered))] for j in range(replication_factor - 1))
            assignment[partition] = (ordered[first], *followers)
    return assignment


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Broker ids with alternating racks, racks and the brokers of each in ascending order: r1's first, r2's first, ...,
    r1's second, ...
    """
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    return [column[row] for row in range(max(map(len, columns), default=0)) for column in columns if row < len(column)]


def _across_racks(
    ordered: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [ordered[first]]
    used_racks = {racks[ordered[first]]}
    step = 0
    while len(replicas) < replication_factor:
        broker = ordered[_follower_index(first, shift * rack_count, step, len(ordered))]
        step += 1
        rack_is_due = racks[broker] not in used_racks or len(used_racks) == rack_count
        if rack_is_due and broker not in replicas:
            replicas.append(broker)
            used_racks.add(racks[broker])
    return tuple(replicas)


def _follower_index(first: int, shift: int, follower: int, broker_count: int) -> int:
    """The index of a follower: 1 to `broker_count` - 1 places behind the first replica."""
    return (first + 1 + (shift + follower) % (broker_count - 1)) % broker_count
