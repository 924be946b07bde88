"""The lines of generated Markdown: none is longer than `tests/test_docs.py` allows."""

import textwrap
from typing import Final

WIDTH: Final = 120


def wrapped(text: str) -> str:
    """A paragraph, or an item of a list that begins with "- ", in lines of at most `WIDTH` characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
