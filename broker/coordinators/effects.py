"""The result of a coordinator's machine for an event: plain values, which the shell (`runner.py`) carries out.

An *event* is a NamedTuple that begins with its key, the id of the coordinated entity: a group id or a transactional id.
An event with a reply has a field `token`, which the shell sets. A *change* alters the shard; the changes that are
written to the log are *records*, and begin with their key too.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

Token = int
"""Names one request without a reply yet; the shell has the request's future."""

Note = tuple[object, ...]
"""A log line: a format and its arguments."""

SHOWN_MAX: Final = 255

NO_PRODUCER_ID: Final = -1
NO_PRODUCER: Final = (NO_PRODUCER_ID, -1)


class Schedule(NamedTuple):
    """Start or restart the timer: it fires `delay_ms` from now. Its `key` names it among those of the event's key."""

    key: Hashable
    delay_ms: int


class Cancel(NamedTuple):
    """Stop the timer if it runs."""

    key: Hashable


ChangeType = TypeVar("ChangeType")
ReplyType = TypeVar("ReplyType")


@dataclass(slots=True)
class Effects(Generic[ChangeType, ReplyType]):
    """The result of a decision, for the shell.

    `changes` are applied in order; the records among them are appended to the log as one batch, which is part of the
    transaction of `producer` (id and epoch) if there is one. `timers` and `notes` take effect at once.

    `replies` are sent once all records that the shard appended so far are committed, so that no client sees a state
    that a fail-over could undo; replies that reveal no state are sent `at_once`. With `is_followed_up` the
    coordinator's own `follow_up` is called then too, whether or not a client still waits.
    """

    changes: list[ChangeType] = field(default_factory=list)
    replies: list[tuple[Token, ReplyType]] = field(default_factory=list)
    timers: list[Schedule | Cancel] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    at_once: bool = False
    is_followed_up: bool = False
    producer: tuple[int, int] = NO_PRODUCER


def printable(text: str) -> str:
    """A client's text, safe for a log line: shortened, control characters escaped."""
    return repr(text[:SHOWN_MAX])[1:-1]
