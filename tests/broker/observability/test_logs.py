"""Log lines: nothing a peer says may forge a line, drive a terminal, or fill the disk."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.observability.logs import (
    MESSAGE_LENGTH_MAX,
    REPEATED_LENGTH_MAX,
    REPEATED_LINES_MAX,
    JsonFormatter,
    RateLimitedHandler,
    TextFormatter,
    configure,
    escape,
    logger_levels,
    set_logger_level,
    tell_what_is_due,
)
from barnabas.clock import SystemClock

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


class Log:
    """A handler, what it writes, and lines of any moment."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = RateLimitedHandler(self.stream)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def log(self, message: str, argument: object, second: float, level: int = logging.WARNING) -> None:
        line = record(message, argument)
        line.created, line.levelno, line.levelname = second, level, logging.getLevelName(level)
        self.handler.handle(line)

    def lines(self) -> list[str]:
        """The lines that were written since the last call."""
        found = self.stream.getvalue().splitlines()
        self.stream.seek(0)
        self.stream.truncate()
        return found


def test_a_warning_that_is_repeated_is_counted() -> None:
    log = Log()
    for number in range(313):
        log.log("no room for %s", "g", 1000 + number / 10)
        log.log("no room for %s", f"another {number}", 1000 + number / 10)
    found = log.lines()
    assert len(found) == 1 + 313
    assert found[0] == "WARNING barnabas.test no room for g"
    log.log("something else %s", "x", 1060)
    assert log.lines() == [
        "WARNING barnabas.test no room for g (repeated 312 times in the last minute)",
        "WARNING barnabas.test something else x",
    ]
    log.log("no room for %s", "g", 1061)
    log.handler.tell_what_is_due(1119)
    assert log.lines() == []
    log.handler.tell_what_is_due(1120)
    assert log.lines() == ["WARNING barnabas.test no room for g (repeated once in the last minute)"]
    log.handler.tell_what_is_due(1180)
    assert log.lines() == []
    log.log("no room for %s", "g", 1181)
    assert log.lines() == ["WARNING barnabas.test no room for g"], "a minute without it: it is news again"


def test_only_warnings_and_worse_are_counted() -> None:
    log = Log()
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        for second in (1, 2):
            log.log("again %s", "x", second, level)
    assert log.lines() == [
        "INFO barnabas.test again x",
        "INFO barnabas.test again x",
        "WARNING barnabas.test again x",
        "ERROR barnabas.test again x",
    ]


def test_at_the_end_nothing_is_kept_back() -> None:
    log = Log()
    for number in range(5):
        log.log("again %s", "x", 100 + number)
    log.handler.tell_what_is_due(107, is_end=True)
    assert log.lines()[1:] == ["WARNING barnabas.test again x (repeated 4 times in the last 7 s)"]


def test_the_process_tells_what_its_handler_left_out(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    for _ in range(4):
        logging.getLogger("barnabas.test").warning("no room for %s", "g")
    tell_what_is_due(SystemClock().now_ms() / 1000, is_end=True)
    first, last = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "no room for g"
    assert re.fullmatch(r"no room for g \(repeated 3 times in the last \d+ s\)", last["message"])
    assert (last["level"], last["logger"]) == ("WARN", "barnabas.test")
    root_logger.handlers = [logging.NullHandler()]
    tell_what_is_due(SystemClock().now_ms() / 1000)


def test_a_clock_that_is_set_back_keeps_nothing_back() -> None:
    log = Log()
    for second in (1000, 1001, 900):
        log.log("again %s", "x", second)
    assert len(log.lines()) == 2


def test_the_number_of_remembered_lines_is_bounded() -> None:
    log = Log()
    for second in range(2):
        for number in range(2 * REPEATED_LINES_MAX):
            log.log(f"cause {number} %s", "x", second)
        log.log("%s", "y" * (REPEATED_LENGTH_MAX + 1), second)
    assert len(log.handler._repeats) == REPEATED_LINES_MAX
    assert len(log.lines()) == REPEATED_LINES_MAX + 2 * REPEATED_LINES_MAX + 2
    log.handler.tell_what_is_due(60)
    assert len(log.lines()) == REPEATED_LINES_MAX
    log.handler.tell_what_is_due(120)
    assert not log.handler._repeats


def test_arguments_that_do_not_fit_raise_nothing(root_logger: logging.Logger) -> None:
    logging.raiseExceptions = False
    log = Log()
    log.log("%d", "not a number", 1)
    assert log.lines() == []


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
    log("closing connection %d", 5000, 6.0)
    lines = stream.getvalue().splitlines()
    assert lines[-2].endswith("900 more lines like this were left out: closing connection %d")
    assert lines[-1].endswith("closing connection 5000")
