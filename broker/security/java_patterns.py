"""Regular expressions and replacements that were written for Java: those of `ssl.principal.mapping.rules` and
`sasl.kerberos.principal.to.local.rules`.

They are compiled by Python's engine: named groups are translated, what Python does not know (`\\p{L}`) is refused. They
are the administrator's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_NAMED_GROUP: Final = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z])")
_NUMBER: Final = re.compile(r"\$(\d{1,1000})", re.ASCII)
_NAME: Final = re.compile(r"\$\{(\w+)\}", re.ASCII)


class PatternError(ValueError):
    """A regular expression or a replacement that cannot be used."""


def compile_pattern(text: str) -> re.Pattern[str]:
    """The regular expression. Raises PatternError."""
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", text))
    except (re.error, RecursionError, OverflowError) as error:  # a depth, or a number, without bounds
        raise PatternError(f"{text} is no regular expression: {error}") from error


class Replacement:
    """The replacement of what a pattern finds (java.util.regex.Matcher.replaceAll). `\\` makes the next character
    literal. `$` must be followed by the number or the name of a group: a number that is larger than that of the groups
    loses digits at its end, and is literal if one digit is too large, too.

    Raises PatternError; with `is_strict` also for a number that would be literal.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], *, is_strict: bool = False) -> None:
        self._parts = list(_parts(text, pattern, is_strict=is_strict))

    def expanded(self, found: re.Match[str]) -> str:
        """The text in place of a match."""
        return "".join(part if isinstance(part, str) else found[part] or "" for part in self._parts)


def _parts(text: str, pattern: re.Pattern[str], *, is_strict: bool) -> Iterator[str | int]:
    """The parts of a replacement: texts, and numbers of groups."""
    position = 0
    while position < len(text):
        character = text[position]
        digits, named = _NUMBER.match(text, position), _NAME.match(text, position)
        if character == "\\" and position + 1 < len(text):
            yield text[position + 1]
            position += 2
        elif digits is not None:
            number = digits[1]
            while len(number) > 1 and int(number) > pattern.groups:
                number = number[:-1]
            if is_strict and int(number) > pattern.groups:
                raise PatternError(f"in the replacement {text}, there is no group ${number}")
            yield int(number) if int(number) <= pattern.groups else f"${number}"
            position += 1 + len(number)
        elif named is not None and named[1] in pattern.groupindex:
            yield pattern.groupindex[named[1]]
            position = named.end()
        elif character == "$":
            raise PatternError(f"in the replacement {text}, $ must be followed by the number of a group")
        else:
            yield character
            position += 1
