"""The messages of the protocol: a generated module per API, imported on first use. The modules are not edited.

A new API or message is a name in `tools/wiregen/selection.py`, which says the jar of Kafka that has its definition; a
field of our own is an entry of `OWN_FIELDS` there. `python -m tools.wiregen` then writes the modules here and
`wire/api_table.py`; `wire/schema.py` says what a module consists of. There are messages of more APIs than are served:
to serve one, add a file to `broker/handlers/`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from barnabas.wire.api_table import API_NAMES as API_NAMES
from barnabas.wire.schema import Message


class ApiMessages:
    """An API's key, Kafka's name, and its two message classes."""

    __slots__ = ("key", "name", "request_class", "response_class")

    def __init__(self, key: int, name: str, request_class: type[Message], response_class: type[Message]) -> None:
        self.key = key
        self.name = name
        self.request_class = request_class
        self.response_class = response_class

    def __repr__(self) -> str:
        return f"ApiMessages({self.key}, {self.name!r})"


@cache
def api(key: int) -> ApiMessages:
    """The messages of an API; imports its module. Errors: KeyError for a key we have no messages of."""
    name = API_NAMES[key]
    module = import_module(f"{__name__}.{module_name(name)}")
    return ApiMessages(key, name, getattr(module, f"{name}Request"), getattr(module, f"{name}Response"))


def module_name(name: str) -> str:
    """The module of an API or message by Kafka's name: "ListOffsets" is in `list_offsets`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")
