"""The requests of clients and the responses they got: the input of the checker.

An operation is one send, one poll, or one transaction of several of both. Every value is written at most once per key
(a key stands for one partition), so a value identifies its writer. Operations and anomalies are defined as in Jepsen's
Kafka workload.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

Key = Hashable
Value = Hashable


class Status(Enum):
    """The result of an operation for its client.

    FAIL: it certainly did not happen. INFO: it is unknown (time-outs, lost connections, NOT_LEADER_OR_FOLLOWER).
    """

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Mode(Enum):
    """The way in which a consumer got its partitions; positions may jump when a group assigns them."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Send:
    """One record written; `offset` is the acknowledged one, None if the client received none."""

    key: Key
    value: Value
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Records read, by key in the order in which they arrived: (offset, value); an empty list for a key without new
    ones.
    """

    records: dict[Key, list[tuple[int, Value]]]


@dataclass(slots=True)
class Operation:
    """One operation of one process (a client with a separate session).

    `is_transaction`: its parts are atomic. `rebalanced`: keys that were reassigned meanwhile, for which positions may
    jump. `consumed`: the offsets that a transaction committed, as (group, key, offset). It took place between `invoked`
    and `completed` (any clock in seconds, the same for all); the completion of an INFO is unknown.
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
        """Whether no record was written or read."""
        return not any(self.sends()) and not any(any(poll.records.values()) for poll in self.polls())


@dataclass(slots=True)
class Assigned:
    """A process's consumer reads these keys from now on; it forgets the positions of all others."""

    process: int
    keys: frozenset[Key]


@dataclass(slots=True)
class History:
    """All operations in the order of their completion, and the final reading from the start of every key; no fault of
    the broker occurred after `healed`, while the operations ran.
    """

    events: list[Operation | Assigned] = field(default_factory=list)
    final: dict[Key, list[tuple[int, Value]]] | None = None
    healed: float = -inf

    def operations(self) -> list[Operation]:
        return [event for event in self.events if isinstance(event, Operation)]
