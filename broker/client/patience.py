"""Retries of the client when brokers are unavailable, or respond with passing errors: each after a longer delay, until
a deadline or for ever, with one report of the cause.
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
"""Elections and similar delays are usually over by then."""

T = TypeVar("T")

TellDelay = Callable[[ClientError, float | None], None]
"""Called with the error, and for how many more seconds it will be retried; None: without a limit."""


def tell_nobody(_error: ClientError, _left_s: float | None) -> None:
    """For callers that do not report delays."""


def passes(error: ClientError) -> bool:
    """Whether a retry may succeed: there was no response, or the error is one that Kafka calls retriable."""
    return isinstance(error, BrokerUnavailable) or (isinstance(error, ResponseError) and error.error.retriable)


class Patience:
    """The retries of one action: for `timeout_s` from now on, or for ever (None). `final` are errors that end it
    although they are retriable otherwise. Owned by one task.
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
        """Note another failure. Errors: the error itself, if there is to be no other attempt."""
        is_final = isinstance(error, ResponseError) and error.error in self._final
        if is_final or not passes(error) or self.is_over:
            raise error
        if self._begun_s is None:  # the first failure
            self._begun_s = asyncio.get_running_loop().time()
        waited_s = self._waited_s()
        if waited_s > DELAY_TOLD_AFTER_S and not self._has_told:
            self._has_told = True
            self._tell(error, None if self._timeout_s is None else self._timeout_s - waited_s)

    async def after(self, error: ClientError) -> None:
        """Wait before the next attempt. Errors: the error itself, if there is to be no other attempt."""
        self.note(error)
        await asyncio.sleep(self._backoff.next_ms() / 1000)

    def reset(self) -> None:
        """The action succeeded: a later failure starts again, with a new report. For actions that are
        retried for ever."""
        self._begun_s = None
        self._has_told = False
        self._backoff.reset()


async def patiently(attempt: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """The result of `attempt`, which is retried while its errors pass, for `timeout_s`. Errors: ClientError."""
    patience = Patience(timeout_s)
    while True:
        try:
            return await attempt()
        except ClientError as error:
            await patience.after(error)
