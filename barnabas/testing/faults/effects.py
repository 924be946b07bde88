"""The effects of faults on a request in a broker: each effect wraps the rest of the processing, runs it or not, and
returns the response. They run on the broker's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.network.outcome import CloseConnection
from barnabas.testing.faults import error_responses
from barnabas.testing.interception import entries
from barnabas.testing.interception.answer import LENGTH_SIZE, Answer, GoOn, Passage
from barnabas.testing.interception.api_entries import PARTITION, TOPIC, TOPIC_ID
from barnabas.testing.interception.request import Request
from barnabas.timers import pause
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from barnabas.testing.interception.entries import Subject

UNTIL_CLOSED_MS = 60_000
"""Longer than it takes to close a connection that is closed in the loop's next turn."""


class _Passing:
    """An effect that holds no request."""

    __slots__ = ()

    def end(self) -> None:
        """No-op: nothing is held."""


@dataclass(slots=True)
class Fail(_Passing):
    """Returns an error code in place of the work, or of its result: for the whole response, or for the entries for
    which `is_meant` is true, according to `addressed` (roles of `api_entries`).
    """

    failure: error_responses.Failure
    addressed: frozenset[str]
    is_meant: Callable[[Subject], bool]
    is_whole: bool | None
    after_work: bool

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        request, version = passage.request, passage.request.version
        api = messages.api(request.message.API_KEY)
        addressed = self.addressed & error_responses.addressable(api, version)
        is_whole = self.is_whole
        if is_whole is None or not error_responses.has_whole_error(api, version):
            is_whole = error_responses.is_whole_by_default(api, version, addressed, self.failure.code)
        if self.after_work:
            answer = await go_on()
            if answer is None:
                raise CloseConnection(f"{request.api} failed, and has no response for the error")
            if is_whole:
                return Answer(request, response=error_responses.whole_error(api, version, self.failure))
            self._overwrite(passage, answer, addressed)
            return answer
        if request.api == "Produce" and request.message.acks == 0:
            raise CloseConnection("Produce failed, and has no response for the error")
        if is_whole:
            return Answer(request, response=error_responses.whole_error(api, version, self.failure))
        if request.api == "Fetch":
            return await self._fail_fetch(passage, go_on, addressed)
        return await self._fail_entries(passage, go_on, addressed)

    def _is_meant(self, request: Request) -> Callable[[Subject], bool]:
        return lambda subject: self.is_meant(entries.settled(subject, request.message, request.topic_name))

    def _overwrite(self, passage: Passage, answer: Answer, addressed: frozenset[str]) -> None:
        request = passage.request
        api = messages.api(request.message.API_KEY)
        is_meant, response = self._is_meant(request), answer.response()
        error_responses.overwrite(api, passage.message, response, request.version, addressed, is_meant, self.failure)

    async def _fail_entries(self, passage: Passage, go_on: GoOn, addressed: frozenset[str]) -> Answer | None:
        """Process the other entries.

        A read-only request is processed first if it is for everything, or if the response cannot distinguish its
        entries.
        """
        request, version = passage.request, passage.request.version
        api, is_meant = messages.api(request.message.API_KEY), self._is_meant(request)
        found = error_responses.split(api, passage.message, version, addressed, is_meant, self.failure)
        if found is None:
            answer = await go_on()
            if answer is not None:
                self._overwrite(passage, answer, addressed)
            return answer
        if found.is_rest_empty and api.key != entries.METADATA:  # its response also lists brokers
            answer = Answer(request, response=api.response_class())
        else:
            rest = await go_on(found.rest)
            if rest is None:
                return None
            answer = rest
        error_responses.merge(answer.response(), found.levels, found.answers)
        return answer

    async def _fail_fetch(self, passage: Passage, go_on: GoOn, addressed: frozenset[str]) -> Answer | None:
        """A Fetch only reads, and its session contains a part of its partitions: it is processed, without waiting."""
        request = passage.request
        answer = await go_on(error_responses.without_wait(passage.message))
        if answer is None:
            return None
        self._overwrite(passage, answer, addressed)
        response = answer.response()
        told = {(topic.topic, bytes(topic.topic_id), partition.partition_index)
                for topic in response.responses for partition in topic.partitions}  # fmt: skip
        by_id = request.version >= 13
        missing = [
            subject
            for subject in request.subjects
            if PARTITION in subject
            and self.is_meant(subject)
            and (
                "" if by_id else subject.get(TOPIC, ""),
                subject.get(TOPIC_ID, entries.ZERO_ID) if by_id else entries.ZERO_ID,
                subject.get(PARTITION),
            )
            not in told
        ]
        if not response.error_code:
            error_responses.add_missing(messages.api(1), response, request.version, missing, self.failure)
        return answer


@dataclass(slots=True)
class Delay(_Passing):
    """Delays requests, or their responses; later ones of the connection wait behind."""

    draw_ms: Callable[[], float]
    after_work: bool

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        if self.after_work:
            answer = await go_on()
            await self._pause(passage)
            return answer
        await self._pause(passage)
        return await go_on()

    async def _pause(self, passage: Passage) -> None:
        """Wait, by the broker's clock.

        Fractions of a ms, which neither that clock nor uvloop's timers support, are of real time, and do not block the
        loop.
        """
        delay_ms = self.draw_ms()
        whole_ms = int(delay_ms)
        if whole_ms or not delay_ms:
            await pause(passage.timers, whole_ms)
        end_s = time.perf_counter() + (delay_ms - whole_ms) / 1000
        while time.perf_counter() < end_s:  # noqa: ASYNC110 - no event and no timer tells of a tenth of a ms
            await asyncio.sleep(0)


@dataclass(slots=True)
class Park:
    """Holds requests, or their responses, until they are released. `changed` is called when one arrives or leaves."""

    after_work: bool
    changed: Callable[[], None]
    parked: list[asyncio.Future[None]] = field(default_factory=list)
    is_over: bool = False

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        if self.after_work:
            answer = await go_on()
            await self._wait()
            return answer
        await self._wait()
        return await go_on()

    async def _wait(self) -> None:
        if self.is_over:
            return
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parked.append(released)
        self.changed()
        try:
            await released
        finally:
            with suppress(ValueError):
                self.parked.remove(released)

    def release(self, count: int | None) -> None:
        """Release the first `count`, or all."""
        going = self.parked[:count]
        del self.parked[:count]
        for released in going:
            if not released.done():
                released.set_result(None)

    def end(self) -> None:
        """Release all, including those that are about to wait."""
        self.is_over = True
        self.release(None)


@dataclass(slots=True)
class Lose:
    """Loses requests, or responses: the connection gets no further responses, like one of a broker that hangs."""

    after_work: bool
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    is_over: bool = False

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        if self.after_work:
            await go_on()
        if not self.is_over:
            closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(closed)
            try:
                await closed
            finally:
                self.waiting.remove(closed)
        raise CloseConnection("a request on it was lost, and the fault is over")

    def end(self) -> None:
        """Close connections on which something was lost, so that their clients use others."""
        self.is_over = True
        for closed in self.waiting:
            if not closed.done():
                closed.set_result(None)


@dataclass(slots=True)
class Disconnect(_Passing):
    """Closes the connection in place of the work, or of its response."""

    after_work: bool

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        if self.after_work:
            await go_on()
        raise CloseConnection("a fault of a test ends it")


@dataclass(slots=True)
class FailLogin(_Passing):
    """Refuses the logins of a user, or by a mechanism, after the broker has accepted them, and closes their
    connections; `counts` is called for each, and says whether it is hit.
    """

    failure: error_responses.Failure
    user: str | None
    mechanism: str | None
    counts: Callable[[], bool]

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        answer = await go_on()
        mechanism = self._accepted(passage, answer)
        if answer is None or mechanism is None or self.mechanism not in (None, mechanism) or not self.counts():
            return answer
        request = passage.request
        failure = self.failure
        if failure.message is None:
            told = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            failure = failure._replace(message=f"{told} {mechanism}")
        response = error_responses.whole_error(messages.api(request.message.API_KEY), request.version, failure)
        if isinstance(response, SaslHandshakeResponse):
            response.mechanisms = [name for name in answer.response().mechanisms if name != mechanism]
        closing = CloseConnection("a fault of a test refuses the login")
        closing.reply = Answer(request, response=response).parts()
        raise closing

    def _accepted(self, passage: Passage, answer: Answer | None) -> str | None:
        """The mechanism of a login of a client that the broker has accepted with this response, and that is meant;
        else None. A mechanism that is not enabled is one of the handshake.
        """
        request, session = passage.request, passage.connection.session
        login = session.login
        if answer is None or login is None or session.listener.is_for_brokers_alone or answer.response().error_code:
            return None
        if self.failure.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return str(request.message.mechanism) if request.api == "SaslHandshake" else None
        if request.api != "SaslAuthenticate" or not login.is_complete or login.identity is None:
            return None
        is_meant = not session.is_broker and self.user in (None, login.identity.name)
        return login.mechanism if is_meant else None


@dataclass(slots=True)
class Throttle(_Passing):
    """Sets `throttle_time_ms` in the response, and delays the connection's next request until that is over, as for a
    client beyond its quota (KIP-219).
    """

    throttle_time_ms: int

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        answer = await go_on()
        if answer is not None:
            response = answer.response()
            if hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = max(response.throttle_time_ms, self.throttle_time_ms)
        passage.connection.session.throttle(self.throttle_time_ms)
        return answer


@dataclass(slots=True)
class Garble(_Passing):
    """Damages responses in one of the ways of WAYS; `counts` is called for each suitable response, and says whether it
    is hit. For records, only partitions for which `is_meant` is true.
    """

    way: str
    is_meant: Callable[[Subject], bool]
    counts: Callable[[], bool]

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        answer = await go_on()
        if answer is None:
            return None
        if self.way == RECORDS:
            partitions = self._with_records(answer)
            if partitions and self.counts():
                _garble_records(partitions)
            return answer
        return _WAYS_OF_FRAMES[self.way](passage, answer) if self.counts() else answer

    def _with_records(self, answer: Answer) -> list[Any]:
        """The partitions in a Fetch response that are meant, and have records."""
        request = answer.request

        def is_meant(topic: Any, partition: Any) -> bool:
            named = {TOPIC: topic.topic} if topic.topic else {TOPIC_ID: bytes(topic.topic_id)}
            subject = {**named, PARTITION: partition.partition_index}
            return self.is_meant(entries.settled(subject, request.message, request.topic_name))

        return [
            partition
            for topic in answer.response().responses
            for partition in topic.partitions
            if partition.records and is_meant(topic, partition)
        ]


def _with_bytes(answer: Answer, data: bytes) -> Answer:
    return Answer(answer.request, [data])


def _cut(passage: Passage, answer: Answer) -> Answer:
    """The connection breaks in the middle of the frame. No other request is served until then: the client would take
    its response for the rest of this one.
    """
    whole = answer.bytes()
    passage.connection.throttle(UNTIL_CLOSED_MS)
    asyncio.get_running_loop().call_soon(passage.connection.close, "a reply was cut by a fault of a test")
    return _with_bytes(answer, whole[: max(LENGTH_SIZE, len(whole) // 2)])


def _short(passage: Passage, answer: Answer) -> Answer:
    """The frame ends before its message does."""
    whole = answer.bytes()
    body = whole[LENGTH_SIZE : LENGTH_SIZE + max(4, (len(whole) - LENGTH_SIZE) // 2)]
    return _with_bytes(answer, len(body).to_bytes(LENGTH_SIZE) + body)


def _correlation_id(passage: Passage, answer: Answer) -> Answer:
    """Change a response so that it seems to belong to another request."""
    whole = bytearray(answer.bytes())
    whole[LENGTH_SIZE : LENGTH_SIZE + 4] = (answer.request.correlation_id ^ 0x40000000).to_bytes(4, signed=True)
    return _with_bytes(answer, bytes(whole))


def _garble_records(partitions: Iterable[Any]) -> None:
    """Change one byte of the last batch of each partition, so that its checksum is wrong."""
    for partition in partitions:
        damaged = bytearray(partition.records)
        damaged[-1] ^= 0xFF
        partition.records = damaged


_WAYS_OF_FRAMES: Final[Mapping[str, Callable[[Passage, Answer], Answer]]] = {
    "cut": _cut,
    "short": _short,
    "correlation_id": _correlation_id,
}
RECORDS: Final = "records"
WAYS: Final = (*_WAYS_OF_FRAMES, RECORDS)
