"""Logging: one set-up, one formatter, to standard error; and the levels of loggers under Kafka's names for them.

Text from clients (topic names, client ids) is passed to log lines unchanged; the formatter escapes characters that
could forge a line or control a terminal, so that no caller has to. Python's logging has no TRACE and FATAL: they are
DEBUG and CRITICAL.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Mapping
from typing import Final, TextIO

KAFKA_LEVELS: Final[Mapping[str, int]] = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""The levels that AlterConfigs accepts (LogLevelConfig.java)."""

ROOT_LOGGER: Final = "root"

_NAMES: Final = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}

# C0 and C1 controls, the line and paragraph separators, and the bidirectional controls that reorder displayed text.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_BUT_LINES: Final = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))

MESSAGE_LENGTH_MAX: Final = 8_192
"""The maximum length of a message in characters; a hostile name may be 32 KiB long."""


LINES_PER_SECOND_MAX: Final = 100
"""The limit of lines of one cause in `RateLimitedHandler`."""

REPEATS_PERIOD_S: Final = 60.0
REPEATED_LINES_MAX: Final = 1_000
REPEATED_LENGTH_MAX: Final = 1_000
"""The maximum number of different lines that are remembered, and the maximum length of each; others are written each
time."""


def escape(text: str) -> str:
    """`text` with every control character made visible, and cut to MESSAGE_LENGTH_MAX."""
    if len(text) > MESSAGE_LENGTH_MAX:
        text = f"{text[:MESSAGE_LENGTH_MAX]}... ({len(text)} characters)"
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class TextFormatter(logging.Formatter):
    """One line per record: time (local, with milliseconds), level, logger, message; a traceback follows, indented. A
    `label` before the logger names the process, if several write to one place."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = f"{label} " if label else ""

    def format(self, record: logging.LogRecord) -> str:
        time = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')}.{int(record.msecs):03d}"
        line = f"{time} {_level_name(record.levelno):<5} {self._label}{record.name}: {escape(record.getMessage())}"
        if record.exc_info:
            # Each line of a traceback is separate; text in an exception's message must not start a new one.
            trace = _UNSAFE_BUT_LINES.sub(_escaped, self.formatException(record.exc_info))
            line += "".join(f"\n    {part}" for part in trace.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, RFC 3339), level, logger, message, exception and `label`, if any."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label

    def format(self, record: logging.LogRecord) -> str:
        import json
        import time

        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": _level_name(record.levelno),
            "logger": record.name,
            "message": escape(record.getMessage()),
        }
        if self._label:
            entry["process"] = self._label
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _level_name(level: int) -> str:
    return _NAMES.get(level, str(level))


class _Repeats:
    """The number of repetitions of a line since it was last written, or its repetitions were."""

    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Keeps frequent lines from filling the log; omitted lines are counted and reported.

    A warning, or a more severe line, that is repeated word for word within a minute is written once, and the number of
    repetitions at the end of each minute. Of each cause, a logger and its message before arguments are inserted, at
    most LINES_PER_SECOND_MAX lines a second are written. Clients determine the frequency of most causes.

    Due reports are written by the next line, or by `tell_what_is_due`, whichever comes first.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._second = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._repeats: dict[tuple[str, int, str], _Repeats] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if int(record.created) != self._second:
            self._tell_what_is_due(record.created)
        try:
            if record.levelno >= logging.WARNING and self._is_repeated(record):
                return
        except Exception:  # noqa: BLE001 - arguments that do not fit their message: as logging's own handlers do
            self.handleError(record)
            return
        cause = (record.name, str(record.msg))
        count = self._counts[cause] = self._counts.get(cause, 0) + 1
        if count <= LINES_PER_SECOND_MAX:
            super().emit(record)

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        """Whether the line was written less than a minute ago; if so it is counted, else remembered, if
        there is room."""
        line = (record.name, record.levelno, record.getMessage())
        repeats = self._repeats.get(line)
        if repeats is not None:
            repeats.count += 1
            return True
        if len(self._repeats) < REPEATED_LINES_MAX and len(line[2]) <= REPEATED_LENGTH_MAX:
            self._repeats[line] = _Repeats(record.created)
        return False

    def tell_what_is_due(self, now_s: float, *, is_end: bool = False) -> None:
        """Report omitted lines up to a moment, in seconds since the epoch; at the end without waiting for the minute to
        be over. Any thread.
        """
        with self.lock or contextlib.nullcontext():
            self._tell_what_is_due(now_s, is_end=is_end)

    def _tell_what_is_due(self, now_s: float, *, is_end: bool = False) -> None:
        counts, self._counts, self._second = self._counts, {}, int(now_s)
        for (name, message), count in counts.items():
            if count > LINES_PER_SECOND_MAX:
                left_out = (count - LINES_PER_SECOND_MAX, message)
                super().emit(_record(name, logging.WARNING, "%d more lines like this were left out: %s", left_out))
        for line, repeats in list(self._repeats.items()):
            seconds = now_s - repeats.since
            if not is_end and 0 <= seconds < REPEATS_PERIOD_S:
                continue
            if not repeats.count:
                del self._repeats[line]
                continue
            name, level, text = line
            times = "once" if repeats.count == 1 else f"{repeats.count} times"
            period = "minute" if abs(seconds - REPEATS_PERIOD_S) < REPEATS_PERIOD_S / 4 else f"{abs(seconds):.0f} s"
            super().emit(_record(name, level, "%s (repeated %s in the last %s)", (text, times, period)))
            repeats.since, repeats.count = now_s, 0


def _record(name: str, level: int, message: str, arguments: tuple[object, ...]) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 0, message, arguments, None)


def tell_what_is_due(now_s: float, *, is_end: bool = False) -> None:
    """Like `RateLimitedHandler.tell_what_is_due`, if there is such a handler: called every few seconds, so that reports
    are written even if the log has become silent."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RateLimitedHandler):
            handler.tell_what_is_due(now_s, is_end=is_end)


def configure(
    level: str = "INFO", log_format: str = "text", stream: TextIO | None = None, *, label: str = ""
) -> logging.Handler:
    """Send all log lines from `level` up to `stream` (standard error); returns the handler. `label`
    names the process."""
    handler = RateLimitedHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(label) if log_format == "json" else TextFormatter(label))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # A broken pipe on standard error must not cause a traceback on it.
    logging.raiseExceptions = False
    return handler


def logger_levels() -> dict[str, str]:
    """The effective level of every logger of ours, by name, with Kafka's level names; the root logger is "root"."""
    levels = {ROOT_LOGGER: _level_name(logging.getLogger().level)}
    for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.startswith("barnabas"):
            levels[name] = _level_name(logger.getEffectiveLevel())
    return levels


def set_logger_level(name: str, level: str | None) -> None:
    """Set one logger to one of KAFKA_LEVELS; None resets it to its parent's level."""
    logger = logging.getLogger() if name == ROOT_LOGGER else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else KAFKA_LEVELS[level])
