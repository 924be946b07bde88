"""One run of a broker: a thread, its event loop, and the server that the loop owns."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.environment import Environment
from barnabas.broker.event_loops import new_event_loop
from barnabas.broker.server import Broker as Server
from barnabas.testing.brokers.kept_network import KeptNetwork, KeptThreads
from barnabas.testing.brokers.log_lines import Lines, OwnStoreWorker, OwnThreads
from barnabas.testing.waiting.calls import Calls


class BrokerThread:
    """A broker that runs from construction until `end`; `replace` puts another one in its place. Other threads ask it
    by `calls`.

    `prepare` is called with each server before it starts; `lines` keep its log lines. Construction returns when clients
    can connect, and raises the errors of the start (OSError, ConfigError, StorageError); nothing remains of it then.
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
        self.calls = Calls("broker")
        self._thread = threading.Thread(target=self._run, name="barnabas", daemon=True)
        self._thread.start()
        try:
            self._loop, self._ending, self.server = self._started.result()
        except BaseException:  # the start failed, or an interrupt came during it
            self._is_unwanted = True
            if self._started.done() and self._started.exception() is None:
                loop, ending, _ = self._started.result()
                loop.call_soon_threadsafe(ending.set)
            self._thread.join()
            raise

    def replace(self, config: BrokerConfig, between: Callable[[], None], *, is_clean: bool, what: str) -> None:
        """End the broker, call `between`, and start another one with its ports and its clients' connections. Pending
        calls end with an error that says `what` happened to the broker ("was reset"), except those that repeat their
        look-up (`conditions.outliving`). Raises the errors of each step; no broker serves then, and `end` has to be
        called.
        """
        self.calls.run_through(self._replace(config, between, is_clean, what))

    def end(self, *, is_crash: bool = False, what: str = "stopped") -> None:
        """Stop the broker, cleanly or as a crash would; returns when its threads have ended. Pending calls end with an
        error that says `what` happened. Raises the errors of stopping.
        """
        self._is_crash = is_crash
        self.calls.ends_as = what
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        self._lines.here()
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts or ends the broker
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            self.calls.close()

    async def _serve(self) -> None:
        self.calls.begin(asyncio.get_running_loop())
        ending = asyncio.Event()
        server = await self._start_server(self._config)
        self._started.set_result((asyncio.get_running_loop(), ending, server))
        if not self._is_unwanted:
            await ending.wait()
            server = self.server
        self.calls.pause(self.calls.ends_as)
        if self._is_crash:
            await server.crash()
        else:
            await server.stop()
        await self.calls.end()

    async def _start_server(self, config: BrokerConfig) -> Server:
        server = Server(config, self._environment)
        self._prepare(server)
        await server.start()
        return server

    async def _coordinators_loaded(self) -> None:
        """Wait until coordinators have loaded their topics: before that they report no groups."""
        loading = [*self.server.groups.runtime.running(), *self.server.transactions.runtime.running()]
        if loading:
            await asyncio.wait(loading)

    async def _replace(self, config: BrokerConfig, between: Callable[[], None], is_clean: bool, what: str) -> None:
        from barnabas.testing.brokers import succession

        self.calls.pause(what)
        try:
            await succession.end(self.server, self._network, is_clean=is_clean)
            await self.calls.end()
            between()
            self.server = await self._start_server(config)
            await self._coordinators_loaded()
            self.calls.go_on()
        except BaseException:
            self._network.keep()  # the broker that failed to start has taken nothing
            raise
        finally:
            self._network.go_on()
