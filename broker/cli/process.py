"""The process around a broker: signals that end it, Python's garbage collection, the ready line, the exit status."""

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
_UNUSED_SIGNAL: Final = signal.SIGURG
"""The process ignores it when the event loop is closed, as it does by default."""
_LOG_INTERVAL_S: Final = 5.0
_START_S_MAX: Final = 60.0
"""Garbage collection is enabled when a start takes longer: it may have to wait for ZooKeeper, for example."""
_GARBAGE_THRESHOLD: Final = 10_000
"""The number of additional objects between two collections (Python: 700); connections that end leave none."""


async def run(
    config: BrokerConfig,
    environment: Environment | None = None,
    *,
    prepare: Callable[[Broker], None] = lambda _broker: None,
    on_ready: Callable[[Broker], None] = lambda _broker: None,
) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the process's exit status (1 after a failure that ended it).
    `environment` as in `Broker`. `prepare` is called before it starts, `on_ready` after the ready line.
    """
    end = End()
    started = time.perf_counter()
    broker = Broker(config, environment, on_failure=end.fail)
    prepare(broker)
    asyncio.get_running_loop().call_later(_START_S_MAX, gc.enable)
    telling = asyncio.create_task(tell_what_is_due(broker.clock), name="log")
    end.on_begin = broker.give_up_start
    try:
        await broker.start()
    except asyncio.CancelledError:
        if not end.begun.is_set():
            raise
        logger.info("the start was interrupted")
        return end.status
    look_for_garbage()
    print_ready(ready_line(broker))
    on_ready(broker)
    logger.info("started in %.0f ms", (time.perf_counter() - started) * 1000)
    end.is_up = True
    await end.begun.wait()
    await broker.stop()
    telling.cancel()
    logger.info("stopped in %.0f ms", (time.perf_counter() - end.began) * 1000)
    end.ignore_signals()
    return end.status


def look_for_garbage() -> None:
    """Enable Python's garbage collection (of cycles of objects) from now on, with rare runs. The event loop stands
    still during each run (docs/internals/performance.md).

    The objects of the started broker are exempt: they contain no garbage, neither during the start (`main` in
    __main__.py) nor later. Later objects are partitions, and large requests that are freed without it: with Python's
    own threshold, a controller's request with 5,000 partitions would cause four full runs.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    gc.enable()


async def tell_what_is_due(clock: Clock) -> None:
    """Write the reports of omitted log lines in time."""
    while True:
        await asyncio.sleep(_LOG_INTERVAL_S)
        logs.tell_what_is_due(clock.now_ms() / 1000)


def ready_line(broker: Broker) -> str:
    """The line that is printed when clients may connect."""
    addresses = ",".join(map(str, broker.socket_server.advertised))
    return f"ready: {addresses} node.id={broker.node_id} cluster.id={broker.cluster_id}"


class End:
    """The end of the process, and its exit status; it handles signals from its creation on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.began = 0.0
        self.status = 0
        self.is_up = False
        self.on_begin: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        # From its first handler on, a loop of asyncio is woken by any signal (`signal.set_wakeup_fd`). Else a signal
        # that arrives just before it waits for sockets would not be noticed until the next timer; uvloop is always
        # woken.
        self._loop.add_signal_handler(_UNUSED_SIGNAL, lambda: None)
        for number in _STOP_SIGNALS:
            # Not the loop's handlers: those are removed when it closes, and a later signal would end the process.
            signal.signal(number, self._hear)

    def fail(self, _reason: str) -> None:
        """The broker cannot go on, and has logged the reason."""
        self.status = 1
        self._begin("a failure")

    def ignore_signals(self) -> None:
        """Ignore further signals: the process exits with the status of this stop."""
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
        logger.info("%s: %s", cause, "stopping" if self.is_up else "stopping after the start")
        self.on_begin()
