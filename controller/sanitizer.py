"""Names of users, client ids and addresses as the names of their znodes: percent-encoded.

Source: kafka 3.9.1 Sanitizer.
"""

from typing import Final
from urllib.parse import quote, unquote

DEFAULT_NAME: Final = "<default>"
"""The znode of all entities without one of their own. A name that is the same text is encoded, and so differs."""


def sanitize(name: str) -> str:
    """The name of the znode of an entity. Letters and digits of ASCII, '.', '-' and '_' stand for themselves."""
    return quote(name, safe="").replace("~", "%7E")


def desanitize(sanitized: str) -> str:
    """The name of the entity that a znode belongs to."""
    return unquote(sanitized.replace("+", " "))
