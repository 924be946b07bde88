"""The lines of `sasl.jaas.config`: a login module with a control flag and options, terminated by a semicolon.

Syntax: JaasConfig.java of Kafka, which splits the line with Java's StreamTokenizer. Values that begin with a digit must
be quoted there, and here. No error contains a part of the line: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PLAIN_LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_LOGIN_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_LOGIN_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"

LOGIN_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": PLAIN_LOGIN_MODULE,
    "SCRAM-SHA-256": SCRAM_LOGIN_MODULE,
    "SCRAM-SHA-512": SCRAM_LOGIN_MODULE,
    "OAUTHBEARER": OAUTHBEARER_LOGIN_MODULE,
    "GSSAPI": KERBEROS_LOGIN_MODULE,
}
"""The login module of each mechanism."""

_CONTROL_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_NEEDS_QUOTES: Final = re.compile(r"[\x00-\x1f\"\\]")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""
      (?P<nothing> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]* )
    | (?P<quoted> (?P<quote>["']) (?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*) (?P=quote)? )
    | (?P<word> [A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9._$\u00a0-\U0010ffff-]* )
    | (?P<number> -?[0-9.]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


class JaasError(ValueError):
    """A line that cannot be parsed, or with another login module than the mechanism's."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A line of `sasl.jaas.config`: the login module's class, its control flag, and its options, which have
    passwords."""

    class_name: str
    control_flag: str = "required"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def line(self) -> str:
        """The text, which `parse` reads."""
        options = "".join(f" {name}={quoted(value)}" for name, value in self.options.items())
        return f"{self.class_name} {self.control_flag}{options};"


def quoted(value: str) -> str:
    """The value of an option in quotes."""
    return '"' + _NEEDS_QUOTES.sub(lambda found: f"\\{ord(found[0]):03o}", value) + '"'


class _Token(NamedTuple):
    """A word, the content of quotes, or a character; `text` is None for what is neither a word nor quoted."""

    text: str | None
    character: str
    position: int


def _tokens(line: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(line):
        if found["quoted"] is not None:
            yield _Token(_ESCAPE.sub(_unescaped, found["text"]), "", found.start())
        elif found["nothing"] is None:
            yield _Token(found["word"], found["other"] or "", found.start())


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape, 8)) if escape.isdigit() and escape < "8" else _ESCAPES.get(escape, escape)


def parse(line: str) -> LoginModule:
    """The login module of a line, which must have exactly one. Raises JaasError."""
    tokens = list(_tokens(line))
    if not tokens:
        raise JaasError("it names no login module")
    module, position = _parse_module(tokens, 0)
    if position < len(tokens):
        raise JaasError("it has more than one login module")
    return module


def _parse_module(tokens: list[_Token], position: int) -> tuple[LoginModule, int]:
    class_name = tokens[position].text
    if not class_name:
        raise JaasError("it does not begin with the class of a login module")
    flag = tokens[position + 1].text if position + 1 < len(tokens) else None
    if flag is None or flag.lower() not in _CONTROL_FLAGS:
        raise JaasError(f"the login module is not followed by a control flag ({', '.join(_CONTROL_FLAGS)})")
    options: dict[str, str] = {}
    position += 2
    while position < len(tokens) and tokens[position].character != ";":
        option = tokens[position : position + 3]
        if len(option) < 3 or option[0].text is None or option[1].character != "=" or option[2].text is None:
            raise JaasError(
                f'what begins at character {option[0].position + 1} is not an option of the form name="value" (values'
                " that are no words need quotes)"
            )
        options[option[0].text] = option[2].text
        position += 3
    if position == len(tokens):
        raise JaasError("it does not end with a semicolon")
    return LoginModule(class_name, flag.lower(), options), position + 1


def parse_for(mechanism: str, line: str) -> LoginModule:
    """The login module of a line for a mechanism. Raises JaasError, also if it is another mechanism's."""
    module = parse(line)
    expected = LOGIN_MODULES[mechanism]
    if module.class_name != expected:
        raise JaasError(f"{mechanism} needs {expected}")
    return module
