"""The start and stop of a broker, or a cluster, of a test."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from barnabas.testing import report

if TYPE_CHECKING:
    from barnabas.testing.interception import Owner


class Lifetime(ABC):
    """An object that runs from `start()` until `stop()`, or during its `with` or `async with` block. If an exception
    ends that block, its report is kept for the report of the test.
    """

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop cleanly; does nothing when there is nothing to stop."""

    @abstractmethod
    def _check_started(self) -> None:
        """Errors: RuntimeError, which says what to do, when it was never started, or was stopped since."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            report.failing(cast("Owner", self))
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
