"""What faults do to a request on its way through a broker: each effect stands between the client and the rest of the
way, has the work done or not, and gives the answer. They run on the broker's event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.broker.network.outcome import CloseConnection, Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.storage.file_records import FileRegion
from barnabas.testing import entries
from barnabas.testing.request import Request
from barnabas.timers import Timers, pause
from barnabas.wire import codec, headers, messages

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection
    from barnabas.testing.entries import Subject
    from barnabas.wire.schema import Message

LENGTH_SIZE = 4
UNTIL_CLOSED_MS = 60_000
"""Longer than it takes until a connection that is closed in the loop's next turn is closed."""


class Answer:
    """A reply to a request: its bytes, decoded when they are looked at, and encoded again when they were changed."""

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
        """What is sent, in one piece: length, header and message."""
        if self._response is None:
            assert self._parts is not None
            return b"".join(part.read() if isinstance(part, FileRegion) else part for part in self._parts)
        key, version = self.request.message.API_KEY, self.request.version
        body = codec.encode(self._response, version)
        header = headers.response_header(key, version, self.request.correlation_id)
        return (len(header) + len(body)).to_bytes(LENGTH_SIZE) + header + body


GoOn = Callable[..., Awaitable[Answer | None]]
"""Has the request done by the rest of the way, or the message that it is given instead of the request's own."""


@dataclass(slots=True)
class Passage:
    """One request on its way: `message` is what is asked by now, an earlier effect may have changed it."""

    request: Request
    connection: Connection
    timers: Timers
    message: Message


async def answer_of(outcome: Outcome, request: Request) -> Answer | None:
    """What becomes of a request in the end; None where there is no reply."""
    if isinstance(outcome, Delayed):
        await outcome.ready
        return await answer_of(outcome.resume(), request)
    parts: Any = await outcome if inspect.isawaitable(outcome) else outcome
    return None if parts is None else Answer(request, parts)


class Effect(Protocol):
    """What a fault does."""

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        """Let the request pass or not, and give the reply. Raises CloseConnection to end the connection instead."""
        ...

    def end(self) -> None:
        """The fault is removed: let go of who waits for it."""
        ...


class _Passing:
    """An effect that holds nobody."""

    __slots__ = ()

    def end(self) -> None:
        """Do nothing: there is nobody to let go."""


@dataclass(slots=True)
class Fail(_Passing):
    """Answers with an error code in place of the work, or of what became of it: that of the whole answer, or those of
    the entries that `is_meant` is true of, which goes by what is `addressed` (roles of `entries`)."""

    failure: entries.Failure
    addressed: frozenset[str]
    is_meant: Callable[[Subject], bool]
    is_whole: bool | None
    after_work: bool

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        request, version = passage.request, passage.request.version
        api = messages.api(request.message.API_KEY)
        addressed = self.addressed & entries.addressable(api.response_class, version)
        is_whole = self.is_whole
        if is_whole is None or entries.error_field(api.response_class, version) is None:
            is_whole = entries.is_whole_by_default(api, version, addressed, self.failure.code)
        if self.after_work:
            answer = await go_on()
            if answer is None:
                raise CloseConnection(f"{request.api} failed, and has no reply to say so")
            if is_whole:
                return Answer(request, response=entries.whole_error(api, version, self.failure))
            self._overwrite(passage, answer, addressed)
            return answer
        if request.api == "Produce" and request.message.acks == 0:
            raise CloseConnection("Produce failed, and has no reply to say so")
        if is_whole:
            return Answer(request, response=entries.whole_error(api, version, self.failure))
        if request.api == "Fetch":
            return await self._fail_fetch(passage, go_on, addressed)
        return await self._fail_entries(passage, go_on, addressed)

    def _is_meant(self, request: Request) -> Callable[[Subject], bool]:
        return lambda subject: self.is_meant(entries.settled(subject, request.message, request.topic_name))

    def _overwrite(self, passage: Passage, answer: Answer, addressed: frozenset[str]) -> None:
        request = passage.request
        api = messages.api(request.message.API_KEY)
        is_meant, response = self._is_meant(request), answer.response()
        entries.overwrite(api, passage.message, response, request.version, addressed, is_meant, self.failure)

    async def _fail_entries(self, passage: Passage, go_on: GoOn, addressed: frozenset[str]) -> Answer | None:
        """Have the others done. What only reads, and asks for all there is or about more than the answer tells apart,
        is done first."""
        request, version = passage.request, passage.request.version
        api, is_meant = messages.api(request.message.API_KEY), self._is_meant(request)
        found = entries.split(api, passage.message, version, addressed, is_meant, self.failure)
        if found is None:
            answer = await go_on()
            if answer is not None:
                self._overwrite(passage, answer, addressed)
            return answer
        if found.is_rest_empty and api.key != entries.METADATA:  # which tells of brokers, too
            answer = Answer(request, response=api.response_class())
        else:
            rest = await go_on(found.rest)
            if rest is None:
                return None
            answer = rest
        entries.merge(answer.response(), found.levels, found.answers)
        return answer

    async def _fail_fetch(self, passage: Passage, go_on: GoOn, addressed: frozenset[str]) -> Answer | None:
        """A Fetch only reads, and what it is about is partly in its session: it is done, and not waited for."""
        request = passage.request
        answer = await go_on(entries.without_wait(passage.message))
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
            if entries.PARTITION in subject
            and self.is_meant(subject)
            and (
                "" if by_id else subject.get(entries.TOPIC, ""),
                subject.get(entries.TOPIC_ID, entries.ZERO_ID) if by_id else entries.ZERO_ID,
                subject.get(entries.PARTITION),
            )
            not in told
        ]
        if not response.error_code:
            entries.add_missing(messages.api(1), response, request.version, missing, self.failure)
        return answer


@dataclass(slots=True)
class Delay(_Passing):
    """Has requests, or their replies, wait; the next ones of the connection wait behind."""

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

        Fractions of a ms, which neither it nor uvloop's timers know, are of real time, and do not block the loop.
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
    """Has requests, or their replies, wait until they are released. `changed` is called when one comes or goes."""

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
        """Let the first `count` go on, or all."""
        going = self.parked[:count]
        del self.parked[:count]
        for released in going:
            if not released.done():
                released.set_result(None)

    def end(self) -> None:
        """Let all go on, and those that are about to wait."""
        self.is_over = True
        self.release(None)


@dataclass(slots=True)
class Lose:
    """Loses requests, or replies: the connection answers nothing any more, as one whose broker hangs."""

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
        """Close connections on which something was lost, so that their clients go on with others."""
        self.is_over = True
        for closed in self.waiting:
            if not closed.done():
                closed.set_result(None)


@dataclass(slots=True)
class Disconnect(_Passing):
    """Closes the connection in place of the work, or of its answer."""

    after_work: bool

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        if self.after_work:
            await go_on()
        raise CloseConnection("a fault of a test ends it")


@dataclass(slots=True)
class Throttle(_Passing):
    """Says `throttle_time_ms` in the answer, and begins no other request of the connection before that is over, as for
    a client beyond its quota (KIP-219)."""

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
    """Has answers arrive damaged, in one of the ways of WAYS; `counts` is asked of each that can be, and says whether
    it is to be. Of records those of partitions are meant that `is_meant` is true of."""

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
        """The partitions in the answer to a Fetch that are meant, and of which there are records."""
        request = answer.request

        def is_meant(topic: Any, partition: Any) -> bool:
            named = {entries.TOPIC: topic.topic} if topic.topic else {entries.TOPIC_ID: bytes(topic.topic_id)}
            subject = {**named, entries.PARTITION: partition.partition_index}
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
    """The connection breaks in the middle of the frame. No other request is answered until then: the client would take
    that reply for the rest of this one.
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
    """Change an answer so that it seems to be one to another request."""
    whole = bytearray(answer.bytes())
    whole[LENGTH_SIZE : LENGTH_SIZE + 4] = (answer.request.correlation_id ^ 0x40000000).to_bytes(4, signed=True)
    return _with_bytes(answer, bytes(whole))


def _garble_records(partitions: Iterable[Any]) -> None:
    """One byte of the last batch of each partition is another, so that its checksum is wrong."""
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
