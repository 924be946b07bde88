"""Logging: one set-up, one formatter, to standard error; and the levels of loggers under Kafka's names for them.

Text that came from a peer (topic names, client ids) reaches log lines unchanged; the formatter escapes what could
forge a line or drive a terminal, so that no caller has to think of it. Python's logging knows no TRACE and FATAL:
they are DEBUG and CRITICAL.
"""

from __future__ import annotations

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
"""The levels that AlterConfigs takes (LogLevelConfig.java)."""

ROOT_LOGGER: Final = "root"

_NAMES: Final = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}

# C0 and C1 controls, the line and paragraph separators, and the bidirectional controls that reorder what a person sees.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_BUT_LINES: Final = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))

MESSAGE_LENGTH_MAX: Final = 8_192
"""Characters of one message; a hostile name may be 32 KiB long."""


LINES_PER_SECOND_MAX: Final = 100
"""Of one cause."""


def escape(text: str) -> str:
    """`text` with every control character made visible, and cut to MESSAGE_LENGTH_MAX."""
    if len(text) > MESSAGE_LENGTH_MAX:
        text = f"{text[:MESSAGE_LENGTH_MAX]}... ({len(text)} characters)"
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class TextFormatter(logging.Formatter):
    """One line per record: time (local, with milliseconds), level, logger, message; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        time = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')}.{int(record.msecs):03d}"
        line = f"{time} {_level_name(record.levelno):<5} {record.name}: {escape(record.getMessage())}"
        if record.exc_info:
            # Each line of a traceback stands for itself; what an exception's message contains may not start one.
            trace = _UNSAFE_BUT_LINES.sub(_escaped, self.formatException(record.exc_info))
            line += "".join(f"\n    {part}" for part in trace.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, RFC 3339), level, logger, message, and exception where there is one."""

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
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _level_name(level: int) -> str:
    return _NAMES.get(level, str(level))


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most LINES_PER_SECOND_MAX lines a second of each cause, which is a logger and its message before
    arguments are put in; what was left out is told in one line, by the next line after that second.

    Peers decide how often most causes occur. Errors of our own keep their first tracebacks this way, too.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._second = 0
        self._counts: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        second = int(record.created)
        if second != self._second:
            counts, self._counts, self._second = self._counts, {}, second
            for (name, message), count in counts.items():
                if count > LINES_PER_SECOND_MAX:
                    super().emit(_left_out(name, message, count - LINES_PER_SECOND_MAX))
        cause = (record.name, str(record.msg))
        count = self._counts[cause] = self._counts.get(cause, 0) + 1
        if count <= LINES_PER_SECOND_MAX:
            super().emit(record)


def _left_out(name: str, message: str, count: int) -> logging.LogRecord:
    return logging.LogRecord(
        name, logging.WARNING, __file__, 0, "%d more lines like this were left out: %s", (count, message), None
    )


def configure(level: str = "INFO", log_format: str = "text", stream: TextIO | None = None) -> logging.Handler:
    """Send all log lines from `level` up to `stream` (standard error); returns the handler that does it."""
    handler = RateLimitedHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # A broken pipe on standard error must not become a traceback on it.
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
    """Set one logger to one of KAFKA_LEVELS; None gives it its parent's level again."""
    logger = logging.getLogger() if name == ROOT_LOGGER else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else KAFKA_LEVELS[level])
