"""Coroutines as tests, and the coordination stores that every test of the store's contract runs on."""

import asyncio
import inspect
from pathlib import Path
from types import TracebackType

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests of this folder, each on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), timeout=30))
    return True


class EmbeddedUnderTest:
    """The embedded store behind the few things that a test needs beyond `CoordinationStore`.

    A ZooKeeper server put behind the same five methods can be added to the parameters of `stores`.
    """

    def __init__(self, path: str, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self.survives_restart = path != ":memory:"
        self._store = EmbeddedStore(path, clock)

    async def __aenter__(self) -> "EmbeddedUnderTest":
        await self._store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._store.close()

    async def session(self) -> EmbeddedSession:
        return await self._store.session()

    async def expire(self, session: EmbeddedSession) -> None:
        await self._store.expire(session)

    async def restart(self) -> None:
        await self._store.close()
        self._store = EmbeddedStore(self.path, self.clock)
        await self._store.open()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> EmbeddedUnderTest:
    """`async with stores:` opens it, `await stores.session()` gives a session."""
    return EmbeddedUnderTest(":memory:" if request.param == "memory" else str(tmp_path / "metadata.sqlite"), clock)
