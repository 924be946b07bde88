"""A request on its way through the faults of a test, and its response."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.broker.network.outcome import Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.storage.file_records import FileRegion
from barnabas.testing.interception.request import Request
from barnabas.timers import Timers
from barnabas.wire import codec, headers, messages

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection
    from barnabas.wire.schema import Message

LENGTH_SIZE: Final = 4


class Answer:
    """A response: its bytes, decoded on first access, and encoded again after a change."""

    def __init__(self, request: Request, parts: Parts | None = None, response: Message | None = None) -> None:
        self.request = request
        self._parts = parts
        self._response = response

    def response(self) -> Any:
        """The message; changes to it are sent."""
        if self._response is None:
            key, version = self.request.message.API_KEY, self.request.version
            data = self.bytes()[LENGTH_SIZE:]
            _, position = headers.parse_response_header(data, key, version)
            self._response = codec.decode(messages.api(key).response_class, version, data, position)
        return self._response

    def parts(self) -> Parts:
        """The bytes that are sent to the client."""
        if self._response is not None:
            return [self.bytes()]
        assert self._parts is not None
        return self._parts

    def bytes(self) -> bytes:
        """The sent bytes in one piece: length, header and message."""
        if self._response is None:
            assert self._parts is not None
            return b"".join(part.read() if isinstance(part, FileRegion) else part for part in self._parts)
        key, version = self.request.message.API_KEY, self.request.version
        body = codec.encode(self._response, version)
        header = headers.response_header(key, version, self.request.correlation_id)
        return (len(header) + len(body)).to_bytes(LENGTH_SIZE) + header + body


GoOn = Callable[..., Awaitable[Answer | None]]
"""Runs the rest of the processing, for the request's message or another one."""


@dataclass(slots=True)
class Passage:
    """One request during processing: `message` is the current message, which an earlier effect may have changed."""

    request: Request
    connection: Connection
    timers: Timers
    message: Message


async def answer_of(outcome: Outcome, request: Request) -> Answer | None:
    """The final response to a request; None if there is none."""
    if isinstance(outcome, Delayed):
        await outcome.ready
        return await answer_of(outcome.resume(), request)
    parts: Any = await outcome if inspect.isawaitable(outcome) else outcome
    return None if parts is None else Answer(request, parts)


class Effect(Protocol):
    """The effect of a fault."""

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        """Process the request or not, and return the response. Raises CloseConnection to close the connection."""
        ...

    def end(self) -> None:
        """The fault is removed: release everything that waits for it."""
        ...
