"""Removes entries that no message can carry from a command, so that the rest of it, and later commands, arrive.

Pure. Readers of znodes refuse everything that is known to be unsendable (`znodes`); this is for unexpected cases.
Kafka's controller would retry the same command for ever (`RequestSendThread`).
"""

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

from barnabas.controller.channel import Command
from barnabas.controller.requests import FULL, INCREMENTAL, VERSIONS
from barnabas.wire import codec
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest

_LISTS = {
    "topic_states": ("topic", "topic_name"),
    "live_brokers": ("broker", "id"),
    "live_leaders": ("leader", "broker_id"),
}
"""The lists of commands, the type of their entries, and the field that identifies an entry."""


class Sendable(NamedTuple):
    """A command without its entries that no message can carry, None if it still cannot be sent; and the subjects of
    those entries, as "topic t".
    """

    command: Command | None
    left_out: tuple[str, ...]


def subjects(command: Command) -> Iterator[str]:
    """The subjects of a command's entries."""
    for name in _lists(command):
        for entry in getattr(command, name):
            yield _subject(name, entry)


def sendable(command: Command) -> Sendable:
    """Try each entry separately. A full LeaderAndIsr must not lack topics: brokers set aside the logs that it does not
    name.
    """
    rest, left_out = copy(command), list[str]()
    for name in _lists(command):
        kept = []
        for entry in getattr(command, name):
            alone = type(command)()
            setattr(alone, name, [entry])
            if _can_be_sent(alone):
                kept.append(entry)
            else:
                left_out.append(_subject(name, entry))
        setattr(rest, name, kept)
    if left_out and isinstance(rest, LeaderAndIsrRequest) and rest.type == FULL:
        rest.type = INCREMENTAL
    return Sendable(rest if _can_be_sent(rest) else None, tuple(left_out))


def _lists(command: Command) -> list[str]:
    return [name for name in _LISTS if hasattr(command, name)]


def _subject(name: str, entry: Any) -> str:
    kind, field = _LISTS[name]
    return f"{kind} {getattr(entry, field)}"


def _can_be_sent(command: Command) -> bool:
    try:
        codec.encoder(type(command), VERSIONS[type(command)])(command, [])
    except ValueError:
        return False
    return True
