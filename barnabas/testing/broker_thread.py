"""One life of a broker: a thread, its event loop, and the server that the loop owns."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker as Server

T = TypeVar("T")


class BrokerThread:
    """A broker that runs from construction until `end`.

    Construction returns when clients can connect, and raises what the start raised (OSError, ConfigError,
    StorageError); nothing is left of it then.
    """

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._config = config
        self._environment = environment
        self._is_crash = False
        self._is_unwanted = False
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Server]] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="barnabas", daemon=True)
        self._thread.start()
        try:
            self._loop, self._ending, self.server = self._started.result()
        except BaseException:  # the start failed, or somebody interrupts us while we wait for it
            self._is_unwanted = True
            if self._started.done() and self._started.exception() is None:
                loop, ending, _ = self._started.result()
                loop.call_soon_threadsafe(ending.set)
            self._thread.join()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop, and wait for its result.

        Errors: the coroutine's own; RuntimeError when called on the broker's loop itself, or when the broker stops
        meanwhile.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this blocks, so it must not be called on the broker's own event loop")
        try:
            return self._submit(coroutine).result()
        except CancelledError:
            raise RuntimeError("the broker stopped meanwhile") from None

    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `call`, from a coroutine on another loop; when that is cancelled, so is this one."""
        try:
            return await asyncio.wrap_future(self._submit(coroutine))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the broker stopped meanwhile") from None

    def end(self, *, is_crash: bool = False) -> None:
        """Stop the broker, cleanly or as a crash would; returns when its threads are gone. Raises what stopping
        raised."""
        self._is_crash = is_crash
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._ended.result()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise RuntimeError("the broker has stopped") from None

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts or ends the broker
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        ending = asyncio.Event()
        server = Server(self._config, self._environment)
        await server.start()
        self._started.set_result((asyncio.get_running_loop(), ending, server))
        if not self._is_unwanted:
            await ending.wait()
        if self._is_crash:
            await server.crash()
        else:
            await server.stop()


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop
