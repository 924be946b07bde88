"""The possible results of a request: a response, a wait for one, or the end of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from barnabas.broker.network.reply_queue import Parts
from barnabas.wire.schema import Message


class CloseConnection(Exception):
    """Raised by a handler that can respond only by closing (a failed Produce with acks=0,
    KafkaApis.sendResponseCallback), or whose `response` is to be the connection's last (a refused SaslAuthenticate,
    SaslServerAuthenticator). `reply` has the parts of that response once it is encoded."""

    def __init__(self, reason: str, response: Message | None = None) -> None:
        super().__init__(reason)
        self.response = response
        self.reply: Parts | None = None


@dataclass(slots=True)
class Delayed:
    """A response that has to wait for something but needs no coroutine for it (Kafka's DelayedOperation).

    When `ready` is done, `resume()` returns what a handler returns: the response, or a coroutine. `ready` is cancelled
    when the response is no longer needed. (The `Dispatcher` adds the encoding to `resume`.)
    """

    ready: asyncio.Future[None]
    resume: Callable[[], Any]


Outcome = Parts | None | Awaitable[Parts | None] | Delayed
"""The parts of a response; None if the protocol has none; or an awaitable of either."""
