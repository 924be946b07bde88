"""What clients asked and were told: the input of the checker.

An operation is one send, one poll, or one transaction of several of both. Every value is written at most once per key
(a key stands for one partition), so a value tells who wrote it. After Jepsen's Kafka workload: operations and anomalies
are defined as there.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

Key = Hashable
Value = Hashable


class Status(Enum):
    """How an operation ended for its client.

    FAIL: it surely did not happen. INFO: nobody knows (time-outs, lost connections, NOT_LEADER_OR_FOLLOWER).
    """

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Mode(Enum):
    """How a consumer got its partitions; positions may jump when a group gives them."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Send:
    """One record written; `offset` as acknowledged, None where the client never heard of one."""

    key: Key
    value: Value
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Records read, per key in the order in which they came: (offset, value); none of a key that had nothing new."""

    records: dict[Key, list[tuple[int, Value]]]


@dataclass(slots=True)
class Operation:
    """One operation of one process (a client with its own session).

    `is_transaction`: its parts happen together or not at all. `rebalanced`: keys that moved meanwhile, for which
    positions may jump. `consumed`: what a transaction committed as consumed, as (group, key, offset). It took place
    between `invoked` and `completed` (any clock in seconds, the same for all); nobody knows when an INFO was completed.
    """

    process: int
    status: Status
    parts: list[Send | Poll]
    is_transaction: bool = False
    mode: Mode = Mode.ASSIGN
    rebalanced: frozenset[Key] = frozenset()
    consumed: frozenset[tuple[str, Key, int]] = frozenset()
    invoked: float = -inf
    completed: float = inf

    def sends(self) -> Iterable[Send]:
        return (part for part in self.parts if isinstance(part, Send))

    def polls(self) -> Iterable[Poll]:
        return (part for part in self.parts if isinstance(part, Poll))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written or read."""
        return not any(self.sends()) and not any(any(poll.records.values()) for poll in self.polls())


@dataclass(slots=True)
class Assigned:
    """A process's consumer reads these keys from now on; it forgets the positions of all others."""

    process: int
    keys: frozenset[Key]


@dataclass(slots=True)
class History:
    """All operations in the order of their completion, and what was read in the end from the start of every key; no
    fault was done to the broker after `healed` while they ran.
    """

    events: list[Operation | Assigned] = field(default_factory=list)
    final: dict[Key, list[tuple[int, Value]]] | None = None
    healed: float = -inf

    def operations(self) -> list[Operation]:
        return [event for event in self.events if isinstance(event, Operation)]
