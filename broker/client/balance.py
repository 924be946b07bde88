"""Plans the moves of replicas that give all brokers the same load: a pure decision, made before anything is moved.

Replicas, preferred leaders and bytes of all brokers are brought within 10 % of each other, as far as indivisible
partitions and racks allow it. This happens in rounds, until nothing is left to do: first replicas move from brokers
with many to brokers with few, then replicas of different sizes are exchanged, then leaders, which costs nothing where
both brokers have a replica.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import Placement
from barnabas.broker.client.placement_plans import Loads, Replicas, check_none_away

SLACK: Final = 0.1
"""The permitted difference between the smallest and the greatest load, as a fraction of the greatest."""

_ROUNDS_MAX: Final = 8
_NEIGHBOURS: Final = 6
"""The number of replicas of about the right size that are tried."""


def is_even(values: Iterable[int], unit: int = 0) -> bool:
    """Whether numbers are within 10 % of each other, or within one indivisible `unit`."""
    found = list(values)
    return not found or max(found) - min(found) <= max(unit, SLACK * max(found))


def plan_rebalance(placement: Placement) -> dict[TopicPartition, Replicas]:
    """The new replicas of the partitions that change. Errors: ClientError while a broker with replicas is down."""
    check_none_away(placement.away())
    if not placement.brokers or not placement.partitions:
        return {}
    balance = _Balance(placement)
    found, unevenness = dict(balance.replicas), balance.unevenness()
    while balance.improve() and balance.unevenness() < unevenness:
        found, unevenness = dict(balance.replicas), balance.unevenness()
    return {partition: new for partition, new in found.items() if new != placement.partitions[partition].replicas}


class _Balance:
    """A placement while it is changed: the replicas of each partition, and the loads of each broker."""

    def __init__(self, placement: Placement) -> None:
        self.brokers = list(placement.brokers)
        self.loads = Loads(placement, self.brokers)
        self.size = {partition: place.bytes for partition, place in placement.partitions.items()}
        self.replicas: dict[TopicPartition, Replicas] = {
            partition: place.replicas for partition, place in placement.partitions.items()
        }
        self.hosted: dict[int, set[TopicPartition]] = {broker: set() for broker in self.brokers}
        for partition, replicas in self.replicas.items():
            for broker in replicas:
                self.hosted[broker].add(partition)

    def unevenness(self) -> tuple[int, int, int]:
        """The unevenness of replicas, leaders and bytes, 0 for even ones: the value that every plan must reduce.

        If racks or sizes make an even load impossible, rounds could go on exchanging one for another; a plan counts
        only if it reduces this value, so that a second one finds nothing to do.
        """
        units = ((self.loads.replicas, 1), (self.loads.leaders, 1), (self.loads.bytes, 0))
        found = [([load[broker] for broker in self.brokers], unit) for load, unit in units]
        replicas, leaders, sizes = (
            0 if is_even(values, unit) else sum(each * each for each in values) for values, unit in found
        )
        return replicas, leaders, sizes

    def improve(self) -> bool:
        """Do rounds until nothing is left to do, or there were too many; returns whether anything has changed."""
        number = 0
        while number < _ROUNDS_MAX and self._round(keep_leaders=number > 1):
            number += 1
        return number > 0

    def _round(self, *, keep_leaders: bool) -> bool:
        steps: list[Callable[[], bool]] = [
            self._move_a_replica,
            lambda: self._even_out_bytes(keep_leaders),
            self._move_a_leader,
        ]
        changed = False
        for step in steps:
            for _ in range(4 * len(self.replicas) + len(self.brokers)):
                if not step():
                    break
                changed = True
        return changed

    # --- changes ----------------------------------------------------------------------------------

    def _set(self, partition: TopicPartition, new: Replicas) -> None:
        old = self.replicas[partition]
        self.loads.add(partition, old, -1)
        self.loads.add(partition, new)
        for broker in old:
            self.hosted[broker].discard(partition)
        for broker in new:
            self.hosted[broker].add(partition)
        self.replicas[partition] = new

    def _moved(self, partition: TopicPartition, source: int, target: int) -> Replicas:
        return tuple(target if each == source else each for each in self.replicas[partition])

    def _move(self, partition: TopicPartition, source: int, target: int) -> None:
        self._set(partition, self._moved(partition, source, target))

    def _hand_over(self, partition: TopicPartition, source: int, target: int) -> None:
        """Exchange two brokers' places in the replicas of a partition that both have."""
        places = {source: target, target: source}
        self._set(partition, tuple(places.get(each, each) for each in self.replicas[partition]))

    def _leads(self, partition: TopicPartition, broker: int) -> bool:
        return self.replicas[partition][0] == broker

    def _movable(self, source: int, target: int) -> list[TopicPartition]:
        """Partitions with a replica on `source` that could be on `target` instead: by size, racks respected."""
        found = (each for each in self.hosted[source] if each not in self.hosted[target])
        return sorted((each for each in found if self._keeps_racks(each, source, target)), key=self._order)

    def _order(self, partition: TopicPartition) -> tuple[int, TopicPartition]:
        return self.size[partition], partition

    def _keeps_racks(self, partition: TopicPartition, source: int, target: int) -> bool:
        racks = self.loads.racks
        if not racks:
            return True
        before = {racks[each] for each in self.replicas[partition]}
        after = {racks[each] for each in self._moved(partition, source, target)}
        return len(after) >= len(before)

    def _pairs(self, loads: Mapping[int, int], least_gap: float) -> Iterator[tuple[int, int]]:
        """Pairs of brokers with much and with little, the greatest difference first."""
        ranked = sorted(self.brokers, key=lambda each: (loads[each], each))
        pairs = [(loads[low] - loads[high], high, low) for high in ranked for low in ranked]
        for gap, high, low in sorted(pairs):
            if -gap < least_gap or high == low:
                return
            yield high, low

    # --- replicas ---------------------------------------------------------------------------------

    def _move_a_replica(self) -> bool:
        counts, sizes, leaders = self.loads.replicas, self.loads.bytes, self.loads.leaders
        if is_even((counts[each] for each in self.brokers), 1):
            return False
        for source, target in self._pairs(counts, 2):
            gap = counts[source] - counts[target]
            ideal = max(0.0, (sizes[source] - sizes[target]) / gap)
            wants_leader = 2 * (leaders[source] - leaders[target]) >= gap
            if movable := self._movable(source, target):
                chosen = min(
                    movable,
                    key=lambda each: (
                        abs(self.size[each] - ideal),
                        self._leads(each, source) != wants_leader,
                        each,
                    ),
                )
                self._move(chosen, source, target)
                return True
        return False

    # --- bytes ------------------------------------------------------------------------------------

    def _even_out_bytes(self, keep_leaders: bool) -> bool:
        sizes = self.loads.bytes
        if is_even(sizes[each] for each in self.brokers):
            return False
        allowed = SLACK * max(sizes[each] for each in self.brokers)
        for source, target in self._pairs(sizes, max(1.0, allowed)):
            gap = sizes[source] - sizes[target]
            changes = [
                (abs(gap - 2 * moved), cost, away, back)
                for moved, cost, away, back in self._exchanges(source, target, gap, keep_leaders)
                if 0 < moved < gap
            ]
            if changes:
                # Of the sufficient changes the cheapest, else the one that leaves the smallest difference.
                enough = [each for each in changes if each[0] <= allowed]
                best = min(enough, key=lambda each: each[1]) if enough else min(changes, key=lambda each: each[:2])
                self._move(best[2], source, target)
                if best[3] is not None:
                    self._move(best[3], target, source)
                return True
        return False

    def _exchanges(
        self, source: int, target: int, gap: int, keep_leaders: bool
    ) -> Iterator[tuple[int, int, TopicPartition, TopicPartition | None]]:
        """Possible moves from `source`, with a replica in return or not: by how much `source` gets smaller, the bytes
        to copy, and both partitions."""
        going, coming = self._movable(source, target), self._movable(target, source)
        order = [self.size[each] for each in coming]
        counts = self.loads.replicas
        if counts[source] > counts[target]:
            for each in going:
                if not (keep_leaders and self._leads(each, source)):
                    yield self.size[each], self.size[each], each, None
        for each in going:
            leads = self._leads(each, source)
            size = self.size[each]
            near = bisect_left(order, size - gap // 2)
            for back in coming[max(0, near - _NEIGHBOURS) : near + _NEIGHBOURS]:
                if not keep_leaders or leads == self._leads(back, target):
                    yield size - self.size[back], size + self.size[back], each, back

    # --- leaders ----------------------------------------------------------------------------------

    def _move_a_leader(self) -> bool:
        leaders = self.loads.leaders
        if is_even((leaders[each] for each in self.brokers), 1):
            return False
        most = max(leaders[each] for each in self.brokers)
        for source in (each for each in self.brokers if leaders[each] == most):
            if self._hand_over_along_a_path(source, most - 2):
                return True
        return any(self._exchange_leader(source, target) for source, target in self._pairs(leaders, 2))

    def _hand_over_along_a_path(self, source: int, enough: int) -> bool:
        """Reduce the leaders of `source` by one and increase those of a broker that leads `enough` at most, through
        others if needed."""
        came_by: dict[int, tuple[int, TopicPartition]] = {}
        border, seen = [source], {source}
        while border:
            reached: list[int] = []
            for broker in border:
                for partition in sorted(each for each in self.hosted[broker] if self._leads(each, broker)):
                    for follower in self.replicas[partition][1:]:
                        if follower not in seen:
                            seen.add(follower)
                            came_by[follower] = (broker, partition)
                            reached.append(follower)
            ends = [each for each in reached if self.loads.leaders[each] <= enough]
            if ends:
                self._follow_back(min(ends, key=lambda each: (self.loads.leaders[each], each)), source, came_by)
                return True
            border = reached
        return False

    def _follow_back(self, end: int, source: int, came_by: Mapping[int, tuple[int, TopicPartition]]) -> None:
        while end != source:
            before, partition = came_by[end]
            self._hand_over(partition, before, end)
            end = before

    def _exchange_leader(self, source: int, target: int) -> bool:
        """Exchange a leading replica for a following one, of sizes as similar as possible."""
        going = [each for each in self._movable(source, target) if self._leads(each, source)]
        coming = [each for each in self._movable(target, source) if not self._leads(each, target)]
        gap = self.loads.bytes[source] - self.loads.bytes[target]
        pairs = (
            (abs(gap - 2 * (self.size[away] - self.size[back])), self.size[away] + self.size[back], away, back)
            for away in going
            for back in coming
        )
        if best := min(islice(pairs, 100_000), default=None):
            self._move(best[2], source, target)
            self._move(best[3], target, source)
            return True
        if going and self.loads.replicas[source] > self.loads.replicas[target]:
            self._move(going[0], source, target)
            return True
        return False
