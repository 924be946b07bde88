"""The process around a broker: signals that end it, Python's garbage, the ready line, the exit status."""

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Callable
from typing import Final

from barnabas.broker.cli.ready import print_ready
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.environment import Environment
from barnabas.broker.observability import logs
from barnabas.broker.server import Broker
from barnabas.clock import Clock

logger = logging.getLogger(__name__)

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOG_INTERVAL_S: Final = 5.0
_START_S_MAX: Final = 60.0
"""Garbage is looked for when a start takes longer: it may have to wait for ZooKeeper, say."""
_GARBAGE_THRESHOLD: Final = 10_000
"""How many objects more there have to be than at the last look (Python: 700); connections that end leave none."""


async def run(config: BrokerConfig, environment: Environment | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the process's exit status (1 after a failure that ended it).
    `environment` as in `Broker`.
    """
    end = End()
    started = time.perf_counter()
    broker = Broker(config, environment, on_failure=end.fail)
    asyncio.get_running_loop().call_later(_START_S_MAX, gc.enable)
    telling = asyncio.create_task(tell_what_is_due(broker.clock), name="log")
    end.on_begin = broker.give_up_start
    try:
        await broker.start()
    except asyncio.CancelledError:
        if not end.begun.is_set():
            raise
        logger.info("the start was given up")
        return end.status
    look_for_garbage()
    print_ready(ready_line(broker))
    logger.info("started in %.0f ms", (time.perf_counter() - started) * 1000)
    end.is_up = True
    await end.begun.wait()
    await broker.stop()
    telling.cancel()
    logger.info("stopped in %.0f ms", (time.perf_counter() - end.began) * 1000)
    end.ignore_signals()
    return end.status


def look_for_garbage() -> None:
    """Have Python look for garbage (cycles of objects) from now on, rarely. Whenever it does, the event loop stands
    still (docs/performance.md).

    What a broker is made of stays: there is none in it, neither while it comes to be (`main` in __main__.py) nor ever
    after. What comes later are partitions, and large requests that end by themselves: with Python's own threshold, a
    controller's word about 5,000 partitions has all of them looked through four times.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    gc.enable()


async def tell_what_is_due(clock: Clock) -> None:
    """Have what was left out of the log told in time."""
    while True:
        await asyncio.sleep(_LOG_INTERVAL_S)
        logs.tell_what_is_due(clock.now_ms() / 1000)


def ready_line(broker: Broker) -> str:
    """What is printed when clients may connect."""
    addresses = ",".join(map(str, broker.socket_server.advertised))
    return f"ready: {addresses} node.id={broker.node_id} cluster.id={broker.cluster_id}"


class End:
    """When the process is to end, and with which status; it follows signals from the moment when it is made."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.began = 0.0
        self.status = 0
        self.is_up = False
        self.on_begin: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            # Not the loop's handlers: those go when it closes, and a signal that comes then would end the process.
            signal.signal(number, self._hear)

    def fail(self, _reason: str) -> None:
        """The broker cannot go on, and has told why."""
        self.status = 1
        self._begin("a failure")

    def ignore_signals(self) -> None:
        """What is left is to exit with the status of this stop."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _hear(self, number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # after a start that was refused the loop is closed
            self._loop.call_soon_threadsafe(self._begin, signal.Signals(number).name)

    def _begin(self, cause: str) -> None:
        if self.begun.is_set():
            return
        self.began = time.perf_counter()
        self.begun.set()
        logger.info("%s: %s", cause, "stopping" if self.is_up else "stopping as soon as the start is over")
        self.on_begin()
