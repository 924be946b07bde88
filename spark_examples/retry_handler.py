"""The interface of a handler of `retry_and_dead_letter`, and the handler of its sample.

A module of its own: a program's own module has another name on the workers, and its classes would not be those that a
handler imports.
"""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.spark_examples.exactly_once import Headers


@dataclass(frozen=True, slots=True)
class Record:
    """The record that a handler gets; `attempt` is 1 for the first one, `timestamp` in ms."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    attempt: int


Handler = Callable[[Record], bytes | None]


class Hopeless(Exception):
    """Raised by a handler: trying again will not help."""


def check_flight(record: Record) -> bytes | None:
    """The sample's handler: how many minutes a flight made up in the air. One that has not arrived has none, yet."""
    try:
        flight = json.loads(record.value or b"")
    except ValueError as problem:
        raise Hopeless(f"no JSON: {problem}") from None
    if flight["arrival_delay"] is None:
        raise LookupError(f"{flight['carrier']} {flight['number']} of {flight['scheduled']} has not arrived")
    made_up = flight["departure_delay"] - flight["arrival_delay"]
    return json.dumps({**flight, "minutes_made_up": made_up}).encode()


def handler_of(text: str) -> Handler:
    """The function that MODULE:FUNCTION names."""
    module, _, name = text.partition(":")
    found: Handler = getattr(importlib.import_module(module), name)
    return found
