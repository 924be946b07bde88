"""The file of `java.security.auth.login.config`: sections, each with the login module of one kind of connection.

    Client {
        org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="secret";
    };

Only the section that is asked for is understood; an error has no part of the file, which has passwords. Syntax: Java's
sun.security.provider.ConfigFile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.security.sasl.jaas import LoginModule

FILE_BYTES_MAX: Final = 1024 * 1024
"""A larger file is no JAAS file."""

_PIECE: Final = re.compile(
    r"""(?P<nothing>//[^\n]*|/\*.*?(?:\*/|\Z)|\s+)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};]|[^\s{};"']+|.""", re.DOTALL
)


class LoginFileError(ValueError):
    """A JAAS file that cannot be used."""


def read_login_module(path: str, section: str, key: str) -> LoginModule | None:
    """The login module of a section; None if there is no such section. `key` is the name for errors. Blocking. Raises
    LoginFileError."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path, or no text
        reason = getattr(error, "strerror", None) or "it is not text"
        raise LoginFileError(f"{key}: cannot read {path}: {reason}") from error
    if len(content) > FILE_BYTES_MAX:
        raise LoginFileError(f"{key}: {path} is too large for a JAAS file")
    try:
        return login_module(text, section)
    except ValueError as error:
        raise LoginFileError(f"{key}: section {section} of {path}: {error}") from error


def login_module(text: str, section: str) -> LoginModule | None:
    """The login module of a section of the file; None if there is no such section. Raises ValueError."""
    from barnabas.broker.security.sasl.jaas import parse

    name, inside = "", None
    for piece in _PIECE.finditer(text):
        if inside is not None:
            if piece[0] == "}":
                if name == section:
                    return parse(text[inside : piece.start()])
                name, inside = "", None
        elif piece[0] == "{":
            inside = piece.end()
        elif piece["nothing"] is None and piece[0] != ";":
            name = piece[0].strip("\"'")
    if inside is not None:
        raise ValueError("a section of the file does not end")
    return None
