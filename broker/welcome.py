"""Requests to a broker that starts beside others: until it knows its cluster, it serves those between brokers alone.

The first request of a client, ApiVersions, is held for a moment. Any other request closes its connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.handlers import find_handler_in_cluster
from barnabas.broker.network.outcome import CloseConnection
from barnabas.timers import Timers, time_limit
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.schema import Message

WELCOME_MS_MAX: Final = 1_500
"""The time for which an early client waits before it is refused: less than the 2 s in which kafka-python 2 expects the
brokers' versions (`api_version_auto_timeout_ms`)."""

_LOGIN: Final = (17, 36)
"""SaslHandshake and SaslAuthenticate, by which brokers authenticate, and clients, whose next request is refused."""

_TOLD_NOTHING: Final = "this broker does not know its cluster yet"


class Welcome:
    """Finds the handlers of a broker that may have others; `serves_clients` is set when it has received all metadata.

    A client that was refused would look for its partitions elsewhere, before other leaders have been elected, and not
    again for a second: so it waits.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.serves_clients = asyncio.Event()

    def find_handler(self, key: int) -> Handler[Any, Any] | None:
        """The handler of an API; None for an unknown key. Raises CloseConnection for one that comes too early."""
        handler = find_handler_in_cluster(key)
        if handler is None or handler.is_inter_broker or key in _LOGIN or self.serves_clients.is_set():
            return handler
        if key == ApiVersionsRequest.API_KEY:
            return replace(handler, handle=partial(self._answer, handler.handle))
        raise CloseConnection(_TOLD_NOTHING)

    def _answer(self, answer: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        if self.serves_clients.is_set():
            return answer(request, context)
        return self._answer_later(answer, request, context)

    async def _answer_later(self, answer: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        try:
            async with time_limit(self._timers, WELCOME_MS_MAX):
                await self.serves_clients.wait()
        except TimeoutError:
            raise CloseConnection(_TOLD_NOTHING) from None
        return answer(request, context)
