"""One life of a broker: a thread, its event loop, and the server that the loop owns."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any, TypeVar
from weakref import finalize

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.environment import Environment
from barnabas.broker.event_loops import new_event_loop
from barnabas.broker.server import Broker as Server
from barnabas.testing.kept_network import KeptNetwork, KeptThreads
from barnabas.testing.log_lines import Lines, OwnStoreWorker, OwnThreads
from barnabas.testing.patience import result_of
from barnabas.testing.waiting import Brokers, brokers_of

T = TypeVar("T")


class BrokerThread:
    """A broker that runs from construction until `end`; `replace` has another one take its place.

    `prepare` is called with each server before that starts; `lines` keep what it logs. Construction returns when
    clients can connect, and raises what the start raised (OSError, ConfigError, StorageError); nothing is left of it
    then.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        prepare: Callable[[Server], None] = lambda server: None,
        lines: Lines | None = None,
    ) -> None:
        self._prepare = prepare
        self._config = config
        self._network = KeptNetwork()
        self._lines = lines or Lines()
        self._environment = replace(
            environment,
            network=self._network,
            threads=OwnThreads(KeptThreads(), self._lines),
            store_worker=lambda: OwnStoreWorker(environment.store_worker(), self._lines),
        )
        self._is_crash = False
        self._is_unwanted = False
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Server]] = Future()
        self._ended: Future[None] = Future()
        self._calls: dict[asyncio.Task[Any], str] = {}
        """What runs for others, and what came over the broker that was asked, once that has ended."""
        self._may_call = asyncio.Event()
        self._may_call.set()
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
        meanwhile, or another one takes its place.
        """
        return self._result_of(self._call(coroutine))

    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `call`, from a coroutine on another loop; when that is cancelled, so is this one."""
        try:
            return await asyncio.wrap_future(self._submit(self._call(coroutine)))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the broker stopped meanwhile") from None

    def replace(self, config: BrokerConfig, between: Callable[[], None], *, is_clean: bool, what: str) -> None:
        """End the broker, do something in between, and have another one go on with its ports and its clients'
        connections. Calls that are under way end with an error that says `what` happened to the broker ("was reset"),
        but for those that look again by themselves (`waiting.outliving`). Raises what any of this raises; no broker
        serves then, and `end` is due."""
        self._result_of(self._replace(config, between, is_clean, what))

    def end(self, *, is_crash: bool = False) -> None:
        """Stop the broker, cleanly or as a crash would; returns when its threads are gone. Raises what stopping
        raised."""
        self._is_crash = is_crash
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._ended.result()

    def _result_of(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this blocks, so it must not be called on the broker's own event loop")
        try:
            return result_of(self._submit(coroutine))
        except CancelledError:
            raise RuntimeError("the broker stopped meanwhile") from None

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise RuntimeError("the broker has stopped") from None

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What runs a coroutine once there is a broker that may be asked."""
        running = self._run_call(coroutine)
        finalize(running, coroutine.close).atexit = False  # where it is cancelled, or closed, before it begins
        return running

    async def _run_call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises RuntimeError where the broker that is asked ends."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._may_call.wait()
            self._calls[task] = ""
            return await coroutine
        except asyncio.CancelledError:
            if what := self._calls.get(task):
                raise RuntimeError(f"the broker {what} meanwhile") from None
            raise
        finally:
            self._calls.pop(task, None)

    def _run(self) -> None:
        self._lines.here()
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts or ends the broker
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        ending = asyncio.Event()
        server = await self._start_server(self._config)
        self._started.set_result((asyncio.get_running_loop(), ending, server))
        if not self._is_unwanted:
            await ending.wait()
            server = self.server
        if self._is_crash:
            await server.crash()
        else:
            await server.stop()

    async def _start_server(self, config: BrokerConfig) -> Server:
        server = Server(config, self._environment)
        self._prepare(server)
        await server.start()
        return server

    async def _coordinators_loaded(self) -> None:
        """Wait until coordinators have read their topics: until then there is no group, for those who look."""
        loading = [*self.server.groups.runtime.running(), *self.server.transactions.runtime.running()]
        if loading:
            await asyncio.wait(loading)

    def _waits(self) -> list[Brokers]:
        """Calls that outlive their broker."""
        return [brokers for task in self._calls if (brokers := brokers_of(task)) is not None]

    async def _end_calls(self, what: str) -> None:
        """End what was asked of a broker that has ended, and will not answer."""
        for task in [task for task in self._calls if brokers_of(task) is None]:
            self._calls[task] = what
            task.cancel()
        await asyncio.sleep(0)

    async def _replace(self, config: BrokerConfig, between: Callable[[], None], is_clean: bool, what: str) -> None:
        from barnabas.testing import succession

        self._may_call.clear()  # what is asked from now on is asked of the next broker
        for wait in self._waits():
            wait.ends()
        try:
            await succession.end(self.server, self._network, is_clean=is_clean)
            await self._end_calls(what)
            between()
            self.server = await self._start_server(config)
            await self._coordinators_loaded()
            for wait in self._waits():
                wait.begun()
            self._may_call.set()
        except BaseException:
            self._network.keep()  # the broker that could not begin has taken nothing
            raise
        finally:
            self._network.go_on()
