"""How the client goes on when brokers are away, or answer with errors that pass: it tries again, each time somewhat
later, until a deadline or for ever, and tells once what it is that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

from barnabas.backoff import Backoff
from barnabas.broker.client.errors import BrokerUnavailable, ClientError, ResponseError
from barnabas.wire.errors import ErrorCode

FIRST_BACKOFF_MS: Final = 100
LONGEST_BACKOFF_MS: Final = 1000

DELAY_TOLD_AFTER_S: Final = 1.0
"""Elections and the like are over by then."""

T = TypeVar("T")

TellDelay = Callable[[ClientError, float | None], None]
"""Told what is wrong, and for how many seconds that will be tried again; None: for as long as it takes."""


def tell_nobody(_error: ClientError, _left_s: float | None) -> None:
    """For those whose delays nobody wants to know."""


def passes(error: ClientError) -> bool:
    """Whether another attempt may work: nobody answered, or the error is one that Kafka calls retriable."""
    return isinstance(error, BrokerUnavailable) or (isinstance(error, ResponseError) and error.error.retriable)


class Patience:
    """For how long one thing is tried again: `timeout_s` from now on, or for ever (None). `final` are errors that end
    it although others would try again. Owned by one task.
    """

    def __init__(
        self, timeout_s: float | None, tell: TellDelay = tell_nobody, *, final: Collection[ErrorCode] = ()
    ) -> None:
        self._timeout_s = timeout_s
        self._tell = tell
        self._final = final
        self._backoff = Backoff(FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        self._begun_s: float | None = None if timeout_s is None else asyncio.get_running_loop().time()
        self._has_told = False

    @property
    def is_over(self) -> bool:
        """Whether there is no time for another attempt."""
        return self._timeout_s is not None and self._waited_s() >= self._timeout_s

    def _waited_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        return 0.0 if self._begun_s is None else now_s - self._begun_s

    def note(self, error: ClientError) -> None:
        """Have failed once more. Errors: the error itself, where no other attempt is to be made."""
        is_final = isinstance(error, ResponseError) and error.error in self._final
        if is_final or not passes(error) or self.is_over:
            raise error
        if self._begun_s is None:  # nothing was wrong until now
            self._begun_s = asyncio.get_running_loop().time()
        waited_s = self._waited_s()
        if waited_s > DELAY_TOLD_AFTER_S and not self._has_told:
            self._has_told = True
            self._tell(error, None if self._timeout_s is None else self._timeout_s - waited_s)

    async def after(self, error: ClientError) -> None:
        """Wait before the next attempt. Errors: the error itself, where no other attempt is to be made."""
        self.note(error)
        await asyncio.sleep(self._backoff.next_ms() / 1000)

    def reset(self) -> None:
        """It works again: what fails later begins anew, and is told anew. For what is tried for ever."""
        self._begun_s = None
        self._has_told = False
        self._backoff.reset()


async def patiently(attempt: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """What `attempt` returns, tried again while errors pass, for so long. Errors: ClientError."""
    patience = Patience(timeout_s)
    while True:
        try:
            return await attempt()
        except ClientError as error:
            await patience.after(error)
