"""Checks a history for violations of the broker's guarantees.

Compacted topics, most of whose records are removed on purpose, are checked by tools/soak/compacted.py.

Anomalies (names as in Jepsen's Kafka workload; the last four are ours):

- `inconsistent-offsets`: one offset returned two values.
- `duplicate`: one value is at two offsets.
- `lost-write`: a value that was acknowledged, or belongs to a transaction that was partly read, is below the position
  of readers, and was never read.
- `unseen`: an acknowledged value is missing in the final reading.
- `G1a`: a value of a failed operation was read, also by a failed reader, or is in the final reading.
- `precommitted-read`: a transaction read its own write.
- `int-poll-skip`, `int-nonmonotonic-poll`: within one operation a reader jumped forward or back.
- `poll-skip`, `nonmonotonic-poll`: the same between two operations of a process that reads assigned keys.
- `int-nonmonotonic-send`, `nonmonotonic-send`: a process's sends are in another order than it sent them.
- `G1c`: operations read from each other in a circle (also through the order of one process, or of the clock, when a
  read returns a later write).
- `torn-transaction`: in the final reading a transaction is there in part, or it failed and is there, or it committed
  and is missing.
- `pair`: of a value that a transaction wrote to two keys, one is missing in the final reading; or the pairs of one
  process are in a different order in the two keys.
- `double-consume`: two committed transactions consumed the same offset. A transaction with an unknown result is
  committed if one of its writes was read.
- `unknown-value`: a value was read that no process wrote to that key (misrouted or corrupt).

The maximum realtime lag is reported, too. A reader of assigned keys lags from the moment when a process knew of an
offset beyond the reader's position until its next poll.

Not anomalies, because Kafka does not rule them out: interleaved records of transactions, and positions that jump when a
group rebalances.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from tools.soak.history import Assigned, History, Key, Mode, Operation, Send, Status, Value

CYCLE_STEPS_MAX = 1_000_000
"""The maximum cost of the search for the shortest circle of operations."""


@dataclass(slots=True)
class Findings:
    """Anomalies by name, each with its witnesses as text; and measures of the history's significance."""

    anomalies: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    operations: int = 0
    acknowledged: int = 0
    transactions: int = 0
    realtime_lag_s: float = 0.0
    realtime_lag_after_faults_s: float = 0.0
    """Counted for polls that were invoked after the last fault."""

    @property
    def is_valid(self) -> bool:
        return not self.anomalies

    def add(self, name: str, witness: str) -> None:
        self.anomalies[name].append(witness)

    def __iadd__(self, other: "Findings") -> "Findings":
        """Merge the findings of both."""
        for name, witnesses in other.anomalies.items():
            self.anomalies[name] += witnesses
        self.operations += other.operations
        self.acknowledged += other.acknowledged
        self.transactions += other.transactions
        self.realtime_lag_s = max(self.realtime_lag_s, other.realtime_lag_s)
        self.realtime_lag_after_faults_s = max(self.realtime_lag_after_faults_s, other.realtime_lag_after_faults_s)
        return self


class Checker:
    """One check of one history; `run` may be called once. Time and memory grow with the number of values read."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._operations = history.operations()
        self._findings = Findings()
        self._writer: dict[tuple[Key, Value], Operation] = {}
        self._readers: dict[tuple[Key, Value], list[Operation]] = defaultdict(list)
        self._offsets: dict[Key, dict[int, set[Value]]] = defaultdict(lambda: defaultdict(set))
        self._index: dict[Key, dict[Value, tuple[int, int]]] = {}
        self._final = {(key, value) for key, records in (history.final or {}).items() for _, value in records}

    def run(self) -> Findings:
        self._collect()
        self._order_versions()
        self._check_lost_writes()
        self._check_reads()
        self._check_processes()
        self._check_cycles()
        self._check_final()
        self._check_pairs()
        self._check_consumed()
        self._measure_lag()
        return self._findings

    # --- writers and readers of each value, and its offsets -----------------------------------------

    def _collect(self) -> None:
        findings = self._findings
        findings.operations = len(self._operations)
        for operation in self._operations:
            findings.transactions += operation.is_transaction and operation.status is Status.OK
            for send in operation.sends():
                self._writer[send.key, send.value] = operation
                findings.acknowledged += operation.status is Status.OK
        for operation in self._operations:
            for key, offset, value in _polled(operation):
                self._readers[key, value].append(operation)
                self._offsets[key][offset].add(value)
        for key, records in (self._history.final or {}).items():
            for offset, value in records:
                self._offsets[key][offset].add(value)
        for operation in self._operations:
            if self._must_be_committed(operation):
                for send in operation.sends():
                    if send.offset is not None:
                        self._offsets[send.key][send.offset].add(send.value)

    def _must_be_committed(self, operation: Operation) -> bool:
        """Whether it was acknowledged, or is a transaction (or single send) that was partly read: uncommitted data must
        not be read.
        """
        if operation.status is Status.OK:
            return True
        return operation.status is Status.INFO and any(
            (send.key, send.value) in self._readers or (send.key, send.value) in self._final
            for send in operation.sends()
        )

    def _order_versions(self) -> None:
        """The values of each key in the order of their offsets; gaps are markers of transactions and do not count."""
        for key, by_offset in self._offsets.items():
            index: dict[Value, tuple[int, int]] = {}
            for position, offset in enumerate(sorted(by_offset)):
                values = by_offset[offset]
                if len(values) > 1:
                    self._findings.add("inconsistent-offsets", f"{key} at offset {offset}: {sorted(map(str, values))}")
                for value in values:
                    first, _ = index.get(value, (position, position))
                    if value in index:
                        self._findings.add("duplicate", f"{key}: {value} stands at offset {offset} and before")
                    index[value] = (first, position)
                    if (key, value) not in self._writer:
                        self._findings.add("unknown-value", f"{key} at offset {offset}: nobody wrote {value} there")
            self._index[key] = index

    # --- anomalies --------------------------------------------------------------------------------

    def _check_lost_writes(self) -> None:
        for key, index in self._index.items():
            passed = max(
                (
                    index[value][0]
                    for value in index
                    if any(reader.status is Status.OK for reader in self._readers.get((key, value), ()))
                ),
                default=-1,
            )
            for value, (_, last) in index.items():
                writer = self._writer.get((key, value))
                if (
                    last <= passed
                    and (key, value) not in self._readers
                    and writer is not None
                    and self._must_be_committed(writer)
                ):
                    self._findings.add("lost-write", f"{key}: {value} lies below what was read, and nobody read it")

    def _check_reads(self) -> None:
        for operation in self._operations:
            own = {(send.key, send.value) for send in operation.sends()}
            for key, offset, value in _polled(operation):
                writer = self._writer.get((key, value))
                if writer is not None and writer.status is Status.FAIL:
                    self._findings.add("G1a", f"{key} at offset {offset}: {value} was read, but its write failed")
                if operation.is_transaction and (key, value) in own:
                    self._findings.add("precommitted-read", f"{key}: {value} was read by the transaction that wrote it")

    def _check_processes(self) -> None:
        """Check the order of polls and sends, within operations and between those of one process."""
        polled: dict[int, dict[Key, int]] = defaultdict(dict)
        sent: dict[int, dict[Key, int]] = defaultdict(dict)
        for event in self._history.events:
            if isinstance(event, Assigned):
                positions = polled[event.process]
                polled[event.process] = {key: positions[key] for key in event.keys if key in positions}
            else:
                self._check_polls(event, polled[event.process])
                self._check_sends(event, sent[event.process])

    def _check_polls(self, operation: Operation, positions: dict[Key, int]) -> None:
        seen: dict[Key, int] = {}
        for key, _, value in _polled(operation):
            index = self._index[key][value][0]
            if key in seen and key not in operation.rebalanced:
                self._compare("int-poll-skip", "int-nonmonotonic-poll", key, value, index - seen[key])
            elif key in positions and key not in seen and operation.mode is Mode.ASSIGN:
                self._compare("poll-skip", "nonmonotonic-poll", key, value, index - positions[key])
            seen[key] = index
        if operation.status is Status.OK:
            positions.update(seen)

    def _compare(self, skip: str, back: str, key: Key, value: Value, step: int) -> None:
        if step > 1:
            self._findings.add(skip, f"{key}: {step - 1} values before {value} were passed over")
        elif step < 1:
            self._findings.add(back, f"{key}: {value} came after a value {-step} places behind it")

    def _check_sends(self, operation: Operation, positions: dict[Key, int]) -> None:
        if operation.status is not Status.OK:
            return
        seen: dict[Key, int] = {}
        for send in operation.sends():
            index = self._index.get(send.key, {}).get(send.value)
            if index is None:
                continue
            name = "int-nonmonotonic-send" if send.key in seen else "nonmonotonic-send"
            before = seen.get(send.key, positions.get(send.key))
            if before is not None and index[0] <= before:
                self._findings.add(name, f"{send.key}: {send.value} stands before what its process sent earlier")
            seen[send.key] = index[0]
        positions.update(seen)

    def _check_cycles(self) -> None:
        """Check a graph of operations for cycles, with edges from a writer to its readers, from an operation to the
        next of its process, and to those that were invoked after it was completed.
        """
        number = {id(operation): index for index, operation in enumerate(self._operations)}
        edges: list[set[int]] = [set() for _ in self._operations]
        latest: dict[int, int] = {}
        for index, operation in enumerate(self._operations):
            if operation.status is Status.FAIL:
                continue
            if operation.process in latest:
                edges[latest[operation.process]].add(index)
            latest[operation.process] = index
            if operation.status is Status.OK:
                for key, _, value in _polled(operation):
                    writer = self._writer.get((key, value))
                    if writer is not None and writer is not operation and writer.status is not Status.FAIL:
                        edges[number[id(writer)]].add(index)
        for earlier, later in _in_real_time(self._operations):
            edges[earlier].add(later)
        for component in _components(edges):
            cycle = _shortest_cycle(edges, component)
            members = " -> ".join(
                f"{index} of process {self._operations[index].process}" for index in (*cycle, cycle[0])
            )
            self._findings.add("G1c", f"operations read from each other in a circle: {members}")

    def _check_final(self) -> None:
        if self._history.final is None:
            return
        for operation in self._operations:
            sends = list(operation.sends())
            there = [send for send in sends if (send.key, send.value) in self._final]
            if operation.status is Status.FAIL:
                for send in there:
                    self._findings.add("G1a", f"{send.key}: {send.value} is there, but its write failed")
            if operation.status is Status.OK:
                for send in sends:
                    if (send.key, send.value) not in self._final:
                        self._findings.add("unseen", f"{send.key}: {send.value} was acknowledged and is not there")
            if operation.is_transaction:
                self._check_torn(operation, sends, there)

    def _check_torn(self, operation: Operation, sends: list[Send], there: list[Send]) -> None:
        expected = {Status.OK: len(sends), Status.FAIL: 0}.get(operation.status)
        is_torn = len(there) not in (0, len(sends)) if expected is None else len(there) != expected
        if is_torn:
            self._findings.add(
                "torn-transaction",
                f"{len(there)} of {len(sends)} records of a transaction ({operation.status.value}) are there: "
                f"{[(str(send.key), str(send.value)) for send in sends]}",
            )

    def _check_pairs(self) -> None:
        """Check the pairs of one process and two keys: both values of each must be there, in the same order."""
        pairs: dict[tuple[int, Key, Key], list[tuple[int, int]]] = defaultdict(list)
        for operation in self._operations:
            for first, second in _pairs(operation):
                places = [self._index.get(send.key, {}).get(send.value) for send in (first, second)]
                if self._history.final is not None:
                    there = {(send.key, send.value) in self._final for send in (first, second)}
                    if len(there) == 2:
                        self._findings.add("pair", f"{first.value} is in one of {first.key} and {second.key} only")
                if places[0] is not None and places[1] is not None:
                    pairs[operation.process, first.key, second.key].append((places[0][0], places[1][0]))
        for (process, first_key, second_key), found in pairs.items():
            in_second = [second for _, second in sorted(found)]
            if in_second != sorted(in_second):
                keys = f"{first_key} and {second_key}"
                self._findings.add("pair", f"pairs of process {process} stand in another order in {keys}")

    def _check_consumed(self) -> None:
        consumers: dict[tuple[str, Key, int], int] = defaultdict(int)
        for operation in self._operations:
            if self._must_be_committed(operation):
                for consumed in operation.consumed:
                    consumers[consumed] += 1
        for (group, key, offset), count in consumers.items():
            if count > 1:
                self._findings.add("double-consume", f"{key} at offset {offset}: {count} transactions of {group}")

    def _measure_lag(self) -> None:
        newest = self._newest_known()
        positions: dict[tuple[int, Key], int] = {}
        for operation in self._operations:
            if operation.status is not Status.OK or operation.mode is not Mode.ASSIGN:
                continue
            for poll in operation.polls():
                for key, records in poll.records.items():
                    place = operation.process, key
                    positions[place] = max((offset for offset, _ in records), default=positions.get(place, -1))
                    times, offsets = newest[key]
                    step = bisect_right(offsets, positions[place])
                    if step < len(times):
                        self._note_lag(operation.invoked, operation.invoked - times[step])

    def _note_lag(self, invoked: float, lag_s: float) -> None:
        findings = self._findings
        findings.realtime_lag_s = max(findings.realtime_lag_s, lag_s)
        if invoked >= self._history.healed:
            findings.realtime_lag_after_faults_s = max(findings.realtime_lag_after_faults_s, lag_s)

    def _newest_known(self) -> dict[Key, tuple[list[float], list[int]]]:
        """For each key, the moments at which a process first knew of a larger offset than any before, and these
        offsets.
        """
        known: dict[Key, list[tuple[float, int]]] = defaultdict(list)
        for operation in self._operations:
            if operation.status is Status.OK:
                for key, offset, _ in _polled(operation):
                    known[key].append((operation.completed, offset))
                for send in operation.sends():
                    if send.offset is not None:
                        known[send.key].append((operation.completed, send.offset))
        newest: dict[Key, tuple[list[float], list[int]]] = defaultdict(lambda: ([], []))
        for key, moments in known.items():
            times, offsets = newest[key]
            for time, offset in sorted(moments):
                if isfinite(time) and (not offsets or offset > offsets[-1]):
                    times.append(time)
                    offsets.append(offset)
        return newest


def check(history: History) -> Findings:
    """Check for every anomaly."""
    return Checker(history).run()


def _polled(operation: Operation) -> Iterator[tuple[Key, int, Value]]:
    for poll in operation.polls():
        for key, records in poll.records.items():
            for offset, value in records:
                yield key, offset, value


def _pairs(operation: Operation) -> Iterator[tuple[Send, Send]]:
    """Two sends of one value, in the order of their keys' names."""
    if operation.is_transaction:
        by_value: dict[Value, list[Send]] = defaultdict(list)
        for send in operation.sends():
            by_value[send.value].append(send)
        for sends in by_value.values():
            if len(sends) == 2:
                first, second = sorted(sends, key=lambda send: str(send.key))
                yield first, second


def _in_real_time(operations: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Edges from each operation to those invoked after it was completed, without edges that follow from others."""
    moments = [
        (time, is_invocation, index)
        for index, operation in enumerate(operations)
        if operation.status is not Status.FAIL
        for time, is_invocation in ((operation.invoked, True), (operation.completed, False))
        if isfinite(time)
    ]
    latest: set[int] = set()
    """Completed operations; no other operation is completely between them and now."""
    before: dict[int, set[int]] = {}
    for _, is_invocation, index in sorted(moments, key=lambda moment: (moment[0], not moment[1])):
        if is_invocation:
            before[index] = set(latest)
            yield from ((earlier, index) for earlier in latest)
        else:
            latest -= before.get(index, set())
            latest.add(index)


def _components(edges: list[set[int]]) -> Iterable[set[int]]:
    """The strongly connected components of more than one node (Tarjan's algorithm, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in range(len(edges)):
        if root in order:
            continue
        work = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], order[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = set()
                    while node not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    if len(component) > 1:
                        yield component


def _shortest_cycle(edges: Sequence[set[int]], component: set[int]) -> list[int]:
    """The nodes of a short cycle in a strongly connected component, each followed by the next: the shortest one, unless
    the search would take more than CYCLE_STEPS_MAX steps.
    """
    shortest: list[int] = []
    steps = 0
    for start in sorted(component):
        came_from = {start: start}
        reached = [start]
        length = 0
        while reached and (not shortest or length < len(shortest) - 1):
            length += 1
            steps += len(reached)
            for node in reached:
                if start in edges[node]:
                    shortest = [node]
                    while shortest[0] != start:
                        shortest.insert(0, came_from[shortest[0]])
                    reached = []
                    break
            else:
                found = {
                    successor: node
                    for node in reached
                    for successor in edges[node]
                    if successor in component and successor not in came_from
                }
                came_from |= found
                reached = list(found)
        if len(shortest) == 2 or steps > CYCLE_STEPS_MAX:
            break
    return shortest
