"""Kafka's `sasl.jaas.config`: one login module with its options, `CLASS required NAME="VALUE" ...;` (JaasConfig)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_MODULE: Final = re.compile(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION: Final = re.compile(
    r"""\s*([\w.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL
)
_END: Final = re.compile(r"\s*;\s*")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module: the class's name without its package, and its options, which contain secrets."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """The login module of a configuration. Errors: ValueError, without parts of the text."""
    module = _MODULE.match(text)
    if module is None:
        raise ValueError('expected CLASS required NAME="VALUE" ...;')
    position, options = module.end(), {}
    while (option := _OPTION.match(text, position)) is not None:
        name, *values = option.groups()
        value = next(each for each in values if each is not None)
        options[name] = value if values[2] is not None else _ESCAPED.sub(r"\1", value)
        position = option.end()
    if _END.fullmatch(text, position) is None:
        raise ValueError(f'expected NAME="VALUE" or the semicolon at its end after {len(options)} options')
    return LoginModule(module[1].rpartition(".")[2], options)
