"""Plans new replicas of partitions: pure decisions about a placement, made before anything is moved.

Racks count if all brokers that may get replicas have one, as in Kafka: then the replicas of a partition are in as many
racks as before, or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from barnabas.broker.client.client import ClientError
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import Placement

Replicas = tuple[int, ...]


class Loads:
    """The numbers of replicas, preferred leaders and bytes of each broker, while a plan is made."""

    def __init__(self, placement: Placement, brokers: Collection[int]) -> None:
        self.placement = placement
        self.racks = racks(placement, brokers)
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        for partition, place in placement.partitions.items():
            self.add(partition, place.replicas)

    def add(self, partition: TopicPartition, replicas: Replicas, sign: int = 1) -> None:
        """Add a partition's replicas, or remove them (-1)."""
        size = self.placement.partitions[partition].bytes
        for broker in replicas:
            self.replicas[broker] += sign
            self.bytes[broker] += sign * size
        for broker in replicas[:1]:
            self.leaders[broker] += sign

    def least_loaded(self, brokers: Collection[int], beside: Collection[int]) -> int:
        """The broker that should get the next replica of a partition with other replicas on the brokers `beside`."""
        taken = {self.racks.get(each) for each in beside}
        return min(
            brokers,
            key=lambda each: (
                bool(self.racks) and self.racks[each] in taken,
                self.replicas[each],
                self.bytes[each],
                each,
            ),
        )


def racks(placement: Placement, brokers: Collection[int]) -> dict[int, str]:
    """The rack of each broker; empty if one of `brokers` has none."""
    known = {broker: place.rack for broker, place in placement.brokers.items() if place.rack is not None}
    return known if all(broker in known for broker in brokers) else {}


def check_brokers(placement: Placement, brokers: Collection[int]) -> None:
    """Check that brokers that may get replicas are registered. Errors: ClientError."""
    unknown = sorted(set(brokers) - placement.brokers.keys())
    if away := [each for each in unknown if each in placement.away()]:
        raise ClientError(f"{_are_away(away)}: start {_them(away)} again first")
    if unknown:
        there = ", ".join(map(str, sorted(placement.brokers)))
        raise ClientError(f"there is no broker {', '.join(map(str, unknown))}: the cluster has {there}")


def check_none_away(away: Sequence[int]) -> None:
    """Errors: ClientError with the remedy for a broker that has replicas and is down."""
    if away:
        raise ClientError(
            f"broker {away[0]} has replicas and is away: start it again, or move its replicas to others"
            f" (barnabas brokers drain {away[0]})"
        )


def plan_spread(
    placement: Placement,
    partitions: Collection[TopicPartition],
    brokers: Collection[int],
    replication_factor: int | None = None,
    *,
    keeping: Collection[int] = (),
    away: Sequence[int] = (),
) -> dict[TopicPartition, Replicas]:
    """Place the partitions on these brokers alone, with their present number of replicas or the given one. Replicas
    that may stay do, in their order, including those on brokers that are `keeping` their replicas and get none; missing
    ones go to the least loaded brokers. Returns only partitions that change.

    Errors: ClientError if there are too few brokers, or one is not registered. It names brokers that are `away`, which
    would count if they were up.
    """
    check_brokers(placement, brokers)
    _check_enough(placement, partitions, brokers, replication_factor, keeping, away)
    loads = Loads(placement, brokers)
    targets: dict[TopicPartition, Replicas] = {}
    for partition in sorted(partitions, key=lambda each: (-placement.partitions[each].bytes, each)):
        old = placement.partitions[partition].replicas
        count = len(old) if replication_factor is None else replication_factor
        kept = [each for each in old if each in keeping]
        new = _spread(loads, partition, old, brokers, kept, count)
        if new != old:
            loads.add(partition, old, -1)
            loads.add(partition, new)
            targets[partition] = new
    return dict(sorted(targets.items()))


def _check_enough(
    placement: Placement,
    partitions: Collection[TopicPartition],
    brokers: Collection[int],
    replication_factor: int | None,
    keeping: Collection[int],
    away: Sequence[int],
) -> None:
    """Errors: ClientError that names the obstacle, and the remedy."""
    hindered: dict[TopicPartition, tuple[int, int, list[int]]] = {}
    for partition in sorted(partitions):
        old = placement.partitions[partition].replicas
        needed = len(old) if replication_factor is None else replication_factor
        kept = [each for each in old if each in keeping]
        if needed > len(brokers) + len(kept):
            missed = [each for each in away if each not in kept]
            hindered[partition] = needed, len(brokers) + len(kept), missed
    if not hindered:
        return
    (topic, index), (needed, there, missed) = next(iter(hindered.items()))
    most = there + len(missed)
    if replication_factor is None:
        topics = " ".join(dict.fromkeys(name for name, _ in hindered))
        lower = f"lower that first (barnabas topics reassign {topics} --replication-factor {most})"
    else:
        lower = f"ask for {most} at most"
    more = f" (and {len(hindered) - 1} more)" if len(hindered) > 1 else ""
    raise ClientError(
        f"{topic}-{index}{more} needs {needed} brokers, and {there} can have it"
        f"{_what_to_do(needed, there, missed, lower)}"
    )


def _what_to_do(needed: int, there: int, away: Sequence[int], lower: str) -> str:
    if not away:
        return f": start another one, or {lower}"
    start = f", as {_are_away(away)}: start {_them(away)} again"
    if needed <= there + len(away):
        return f"{start}, or {'another one if it is' if len(away) == 1 else 'others if they are'} lost"
    return f"{start}, and another one besides, or {lower}"


def _are_away(brokers: Sequence[int]) -> str:
    ids = ", ".join(map(str, brokers))
    return f"broker {ids} is away" if len(brokers) == 1 else f"brokers {ids} are away"


def _them(brokers: Sequence[int]) -> str:
    return "it" if len(brokers) == 1 else "them"


def _spread(
    loads: Loads,
    partition: TopicPartition,
    old: Replicas,
    brokers: Collection[int],
    kept: Collection[int],
    count: int,
) -> Replicas:
    place = loads.placement.partitions[partition]
    may_stay = {*brokers, *kept}
    staying = [each for each in old if each in may_stay]
    while len(staying) > count:  # replicas out of sync are removed first, then those that are not preferred
        behind = [each for each in staying if each not in place.in_sync]
        staying.remove(behind[-1] if behind else staying[-1])
    # A removed replica is replaced in its place, so that the order of the others stays.
    new = [each if each in staying else None for each in old if each in staying or each not in may_stay][:count]
    new += [None] * (count - len(new))
    added = []
    for number, each in enumerate(new):
        if each is None:
            taken = [other for other in new if other is not None]
            new[number] = loads.least_loaded([other for other in brokers if other not in taken], taken)
            added.append(new[number])
    replicas = [each for each in new if each is not None]
    if replicas[0] in added:  # another one has to be preferred: the broker with the fewest preferred leaders
        first = min(replicas, key=lambda each: (loads.leaders[each], replicas.index(each)))
        replicas.remove(first)
        replicas.insert(0, first)
    return tuple(replicas)


def copied_bytes(placement: Placement, targets: Mapping[TopicPartition, Replicas]) -> int:
    """The number of bytes that are copied when partitions get these replicas."""
    return sum(
        placement.partitions[partition].bytes * len(set(new) - set(placement.partitions[partition].replicas))
        for partition, new in targets.items()
    )
