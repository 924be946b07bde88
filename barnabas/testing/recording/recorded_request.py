"""A recorded request, and its outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.broker.api.response_errors import error_counter
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.testing.interception.answer import Answer
    from barnabas.testing.interception.request import Request
    from barnabas.wire.schema import Message


class Keeper(Protocol):
    """The recording of a request."""

    def _grow(self, recorded: RecordedRequest, size: int) -> None:
        """A request has grown by its response, of `size` bytes."""
        ...

    def _changed(self) -> None:
        """Notify waits."""
        ...

    def _now_ms(self) -> int:
        """The time of the broker, or the brokers."""
        ...


class RecordedRequest:
    """A request, and its outcome.

    `time_ms` is the time of its arrival, `answered_ms` that of its response, or of the close of its connection, by the
    broker's clock; None until then. `answer` is the decoded response that the client received, None if there is none:
    not yet, because the protocol has none (Produce with acks=0), or because the connection was closed instead
    (`is_closed`).
    """

    def __init__(self, recording: Keeper, request: Request, size: int, time_ms: int) -> None:
        self._recording = recording
        self.request = request
        self.size = size
        self.time_ms = time_ms
        self.answer: Message | None = None
        self.answered_ms: int | None = None
        self.is_closed = False
        self._is_dropped = False
        """Whether its recording has dropped it."""

    def __repr__(self) -> str:
        return f"{self.request!r} -> {self.outcome}"

    @property
    def api(self) -> str:
        """Kafka's name of its API."""
        return self.request.api

    @property
    def client_id(self) -> str | None:
        """The client id of its sender."""
        return self.request.client_id

    @property
    def version(self) -> int:
        """The version of its API."""
        return self.request.version

    @property
    def connection(self) -> int:
        """The number of the connection at its broker."""
        return self.request.connection

    @property
    def broker(self) -> int:
        """The id of the broker that received it."""
        return self.request.broker

    @property
    def topics(self) -> frozenset[str]:
        """The names of all its topics."""
        return self.request.topics

    @property
    def partitions(self) -> frozenset[tuple[str, int]]:
        """Its partitions, by topic and index."""
        return self.request.partitions

    @property
    def groups(self) -> frozenset[str]:
        """Its consumer groups."""
        return self.request.groups

    @property
    def transactional_ids(self) -> frozenset[str]:
        """Its transactional ids."""
        return self.request.transactional_ids

    @property
    def message(self) -> Any:
        """The decoded request."""
        return self.request.message

    @property
    def errors(self) -> list[ErrorCode]:
        """The errors in the response, of the whole or of entries; none while there is no response."""
        found: list[int] = []
        if self.answer is not None and (count := error_counter(type(self.answer), found.append)) is not None:
            count(self.answer)
        return [ErrorCode.of(code) for code in found]

    @property
    def outcome(self) -> str:
        """Its outcome, in a word or two: "ok", the errors' names, "closed", "no reply" or "waiting"."""
        if self.is_closed:
            return "closed"
        if self.answered_ms is None:
            return "waiting"
        if self.answer is None:
            return "no reply"
        return ", ".join(dict.fromkeys(error.name for error in self.errors)) or "ok"

    def _note_answer(self, answer: Answer | None) -> None:
        """The response is sent, or there is none. Broker's loop only."""
        if answer is not None:
            data = answer.bytes()
            self._recording._grow(self, len(data))
            with suppress(Exception):  # a fault has damaged it, which the client will notice
                self.answer = answer.response()
        self.answered_ms = self._recording._now_ms()
        self._recording._changed()

    def _note_close(self) -> None:
        """The connection is closed in place of a response. Broker's loop only."""
        self.is_closed = True
        self.answered_ms = self._recording._now_ms()
        self._recording._changed()
