"""A broker on a thread of its own, so that blocking clients can be used from the test that started it."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from barnabas.broker import config as broker_config
from barnabas.broker.server import Broker as BrokerServer
from barnabas.clock import Clock

T = TypeVar("T")


class Broker:
    """A real broker on 127.0.0.1 and a free port, with a temporary directory that goes when it stops.

    Any Kafka key can be given as a keyword, with underscores for dots: `Broker(num_partitions=3,
    auto_create_topics_enable=False)`; keys that have underscores of their own go into `configs`. Give `data_dir` to
    keep the data, for a restart on the same directory. Use it as a context manager (`with` or `async with`), or call
    `start()` and `stop()`.

    Errors: ConfigError for a bad configuration, OSError, StorageError when it cannot start.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        clock: Clock | None = None,
        configs: dict[str, object] | None = None,
        **keywords: object,
    ) -> None:
        self._keep_data = data_dir is not None
        self._given_data_dir = data_dir
        self._clock = clock
        self._overrides = {key.replace("_", "."): _text(value) for key, value in keywords.items()}
        self._overrides.update({key: _text(value) for key, value in (configs or {}).items()})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: BrokerServer | None = None
        self._stopping: asyncio.Event | None = None
        self.data_dir = Path()
        self.bootstrap_servers = ""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, and return when clients can connect."""
        assert self._thread is None, "this broker runs already"
        self.data_dir = (
            Path(self._given_data_dir) if self._given_data_dir else Path(tempfile.mkdtemp(prefix="barnabas-"))
        )
        defaults = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(self.data_dir)}
        config = broker_config.load(options=defaults | self._overrides)
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(config, started), name="barnabas", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            self._remove_data()
            raise
        return self

    def stop(self) -> None:
        """Stop cleanly; does nothing when the broker does not run."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        self._remove_data()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def server(self) -> BrokerServer:
        """The broker itself; it belongs to its own event loop (see `call`)."""
        assert self._server is not None, "this broker does not run"
        return self._server

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's event loop and return its result."""
        assert self._loop is not None, "this broker does not run"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self, config: broker_config.BrokerConfig, started: "Future[None]") -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(config, started))

    async def _serve(self, config: broker_config.BrokerConfig, started: "Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            self._server = BrokerServer(config, self._clock)
            await self._server.start()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called start()
            started.set_exception(error)
            return
        self.bootstrap_servers = self._server.bootstrap_servers()
        started.set_result(None)
        await self._stopping.wait()
        await self._server.stop()
        self._server = None

    def _remove_data(self) -> None:
        if not self._keep_data:
            shutil.rmtree(self.data_dir, ignore_errors=True)


def _text(value: object) -> str:
    """A configuration value as Kafka's files spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value)
