"""Log lines: nothing a peer says may forge a line, drive a terminal, or fill the disk."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.observability.logs import (
    MESSAGE_LENGTH_MAX,
    JsonFormatter,
    RateLimitedHandler,
    TextFormatter,
    configure,
    escape,
    logger_levels,
    set_logger_level,
)

HOSTILE = "topic\r\n2026-01-01 INFO forged\x1b[2J\u202eevil\x00\x9b31m\u2028next"


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("barnabas.test", logging.WARNING, "file.py", 1, message, arguments, info)


def test_hostile_names_stay_on_their_line() -> None:
    line = TextFormatter().format(record("created %s", HOSTILE))
    assert "\n" not in line
    assert "\\r\\n2026-01-01 INFO forged\\x1b[2J\\u202eevil\\x00\\x9b31m\\u2028next" in line
    assert " WARN  barnabas.test: created topic" in line


def test_json_lines_are_json() -> None:
    line = JsonFormatter().format(record("created %s", HOSTILE))
    entry = json.loads(line)
    assert "\n" not in line
    assert entry["level"] == "WARN"
    assert entry["logger"] == "barnabas.test"
    assert entry["message"].startswith("created topic\\r\\n")
    assert entry["time"].endswith("Z")


def test_tracebacks_are_indented_and_escaped() -> None:
    try:
        raise ValueError("first\nERROR forged\x1b[31m")
    except ValueError as error:
        text = TextFormatter().format(record("failed", error=error))
        entry = json.loads(JsonFormatter().format(record("failed", error=error)))
    head, *trace = text.split("\n")
    assert head.endswith("failed")
    assert all(line.startswith("    ") for line in trace)
    assert "\x1b" not in text
    assert "ValueError" in entry["exception"]


def test_long_messages_are_cut() -> None:
    text = escape("x" * 100_000)
    assert len(text) < MESSAGE_LENGTH_MAX + 100
    assert text.endswith("(100000 characters)")


@given(st.text())
def test_escaped_text_is_printable_or_ordinary(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable() or all(character.isprintable() or ord(character) > 0x9F for character in escaped)
    assert escaped.encode().decode() == escaped


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = (root.handlers, root.level, logging.raiseExceptions)
    yield root
    root.handlers, root.level, logging.raiseExceptions = before


def test_configure(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("warning", "text", stream)
    logging.getLogger("barnabas.test").info("hidden")
    logging.getLogger("barnabas.test").warning("shown")
    assert stream.getvalue().count("\n") == 1
    assert "shown" in stream.getvalue()
    stream = io.StringIO()
    configure("INFO", "json", stream)
    logging.getLogger("barnabas.test").info("shown")
    assert json.loads(stream.getvalue())["message"] == "shown"


def test_levels_have_kafkas_names(root_logger: logging.Logger) -> None:
    logging.getLogger("barnabas.test.levels")
    root_logger.setLevel(logging.WARNING)
    assert logger_levels()["root"] == "WARN"
    assert logger_levels()["barnabas.test.levels"] == "WARN"
    set_logger_level("barnabas.test.levels", "TRACE")
    assert logger_levels()["barnabas.test.levels"] == "DEBUG"
    set_logger_level("barnabas.test.levels", None)
    assert logger_levels()["barnabas.test.levels"] == "WARN"
    set_logger_level("root", "FATAL")
    assert logger_levels()["root"] == "FATAL"
    assert not any(name.startswith("asyncio") for name in logger_levels())


def test_one_cause_has_a_hundred_lines_a_second() -> None:
    stream = io.StringIO()
    handler = RateLimitedHandler(stream)
    handler.setFormatter(TextFormatter())

    def log(message: str, argument: object, second: float) -> None:
        line = record(message, argument)
        line.created = second
        handler.emit(line)

    for number in range(1000):
        log("closing connection %d", number, 5 + number / 1000)
    log("something else %s", "x", 5.9)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 101
    assert lines[-1].endswith("something else x")
    log("closing connection %d", 7, 6.0)
    lines = stream.getvalue().splitlines()
    assert lines[-2].endswith("900 more lines like this were left out: closing connection %d")
    assert lines[-1].endswith("closing connection 7")
