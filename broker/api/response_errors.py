"""Finds the error codes of a response, at the top and in its entries, from the fields of its API.

Produce and Fetch count theirs where they arise: nearly all of their responses have none, and a search would cost as
much as the rest of the counting (tests/benchmarks/test_call_counts.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from barnabas.wire.schema import Array, Message


class _Place(NamedTuple):
    """The places of error codes in a struct: its own field, and the structs of some of its fields."""

    has_code: bool
    below: tuple[tuple[str, bool, _Place], ...]
    """The name of a field, whether it is an array, and the places of its error codes."""


def _place(struct: type[Message]) -> _Place | None:
    below = []
    has_code = False
    for field in struct.FIELDS:
        is_array = isinstance(field.type, Array)
        element = field.type.element if isinstance(field.type, Array) else field.type
        if field.name == "error_code":
            has_code = True
        elif isinstance(element, type) and (place := _place(element)) is not None:
            below.append((field.name, is_array, place))
    return _Place(has_code, tuple(below)) if has_code or below else None


def error_counter(response_class: type[Message], count: Callable[[int], None]) -> Callable[[Message], None] | None:
    """Calls `count` with each error code of a response that it is given; None for an API whose responses have none."""
    place = _place(response_class)
    if place is None:
        return None
    if place.below:
        return lambda response: _count(response, place, count)

    def count_own(response: Any) -> None:
        if response.error_code:
            count(response.error_code)

    return count_own


def _count(struct: Any, place: _Place, count: Callable[[int], None]) -> None:
    if place.has_code and struct.error_code:
        count(struct.error_code)
    for name, is_array, below in place.below:
        found = getattr(struct, name)
        if not found:
            continue
        if not is_array:
            _count(found, below, count)
        elif below.below:
            for entry in found:
                _count(entry, below, count)
        else:
            for entry in found:
                if entry.error_code:
                    count(entry.error_code)
