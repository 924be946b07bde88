"""Reads Java's `.properties` text, the format of `server.properties`.

Rules (java.util.Properties.load): a line ends with LF, CR or CRLF; leading blanks are dropped; `#` and `!` start a
comment; the key ends at the first unescaped `=`, `:` or blank; blanks around the separator are dropped; an odd number
of backslashes at the end of a line joins the next line without its leading blanks; `\\t \\n \\f \\r \\uXXXX` are
escapes, a backslash before anything else is dropped. The last of equal keys wins. Unlike Java's loader for streams,
bytes are read as UTF-8 where they are UTF-8, and as ISO-8859-1 otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_SIMPLE_ESCAPES: Final = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")


class Properties(dict[str, str]):
    """Keys and values. `lines` has the lines of each key, the last of which counts."""

    def __init__(self) -> None:
        self.lines: dict[str, list[int]] = {}


class PropertiesError(ValueError):
    """A malformed escape; the text has the line."""


def decode_properties(data: bytes) -> str:
    """The text of a properties file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def parse_properties(text: str) -> Properties:
    r"""All keys and values of `text`. Errors: PropertiesError where `\u` is not followed by four hexadecimal digits."""
    properties = Properties()
    for number, line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None
        separator = _SEPARATOR.match(line, match.end())
        assert separator is not None
        key = _unescape(match[0], number)
        properties[key] = _unescape(line[separator.end() :], number)
        properties.lines.setdefault(key, []).append(number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines left out, each with its first line's number."""
    lines = _LINE_END.split(text)
    last = len(lines) - (lines[-1] == "")
    joined, first = "", 0
    for number, line in enumerate(lines, 1):
        rest = line.lstrip(_BLANKS)
        if not joined:
            # Also after a line with nothing but a backslash: Java is then still at the start of a logical line.
            if not rest or rest[0] in "#!":
                continue
            first = number
        if not _continues(rest):
            yield first, joined + rest
            joined = ""
        elif number == last:
            yield first, joined + rest[:-1]
            return
        else:
            joined += rest[:-1]


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise PropertiesError(f"line {line}: \\u must be followed by four hexadecimal digits")
        if escape[0] == "u":
            return chr(int(escape[1:], 16))
        return _SIMPLE_ESCAPES.get(escape, escape)

    return _join_surrogates(_ESCAPE.sub(replacement, text))


def _join_surrogates(text: str) -> str:
    r"""Java writes characters beyond U+FFFF as two \u escapes (UTF-16); make one character of them."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
