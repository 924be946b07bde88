"""The brokers' log lines: an error that no fault of the run explains is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tools.simulation.cluster import Cluster
from tools.simulation.faults.replacement import Replacement
from tools.simulation.world.processes import current_process

_FORESEEN: Final = (
    "its session with the metadata store is over",
    "is no longer the controller: another broker has",
    "is no longer the controller: the controller epoch has changed",
    "knows a newer controller",
    "is no longer the controller: it could not join the cluster again",
)
"""Errors that brokers may log."""

_BY_OTHERS: Final = "not by the controller"
"""Errors that a replaced controller may log about its successor's work, before it learns of its replacement."""

_COUNTED: Final = {
    "compacted": "compacted up to offset",
    "ended by retention": "by retention",
    "moves begun": ": reassigning to",
    "moves done": ": reassigned",
}
"""The log messages of brokers to count, by the name of the counter."""


class _LogOfBrokers(logging.Handler):
    """Writes the log messages of brokers to the run's log; errors fail the run."""

    def __init__(self, cluster: Cluster, replacement: Replacement) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster
        self._around = cluster.around
        self._replacement = replacement

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None and process.is_dead:
            return
        name = "nobody" if process is None else process.name
        self._around.tell(f"{name}: {record.levelname} {self.format(record)}")
        message = record.getMessage()
        for what, words in _COUNTED.items():
            if words in message:
                self._around.count(what)
        if record.levelno == logging.ERROR and not self._is_foreseen(name, message):
            self._around.wrong.append(f"{name} logged: {self.format(record)}")

    def _is_foreseen(self, name: str, message: str) -> bool:
        """Whether a fault of the run explains the error."""
        cluster, counts = self._cluster, self._around.outcome.counts
        controller = cluster.controller()
        return (
            any(broker.name == name and broker.trouble is not None for broker in cluster.brokers)
            or ("KAFKA_STORAGE_ERROR" in message and bool({"disk full", "disk failing"} & counts.keys()))
            or (cluster.damaged is not None and cluster.damaged != "" and cluster.damaged in message)
            or self._replacement.tells(name, message)
            or (_BY_OTHERS in message and (controller is None or name != controller.name))
            or any(foreseen in message for foreseen in _FORESEEN)
        )


@contextmanager
def logged_by(cluster: Cluster, replacement: Replacement) -> Iterator[None]:
    """Write what brokers log to the run's log, for the time of the context."""
    handler = _LogOfBrokers(cluster, replacement)
    loggers = [logging.getLogger("barnabas"), logging.getLogger("asyncio")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
            logger.removeHandler(handler)
