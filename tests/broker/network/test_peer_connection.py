"""Requests from one broker to another: their order, their answers, and what becomes of both when something breaks."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Final

import pytest

from barnabas.broker.network.peer_connection import PeerConnection, PeerUnavailable
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.network import OsNetwork
from barnabas.wire import codec, messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import parse_request_header, response_header
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from barnabas.wire.schema import Message
from tools.waiting import PATIENCE_S

TIMEOUT_MS: Final = 30_000


class ScriptedBroker(asyncio.Protocol):
    """The other end of one connection: keeps the requests that come, and answers when it is told to."""

    def __init__(self, has_changed: asyncio.Event) -> None:
        self.requests: list[tuple[Message, int, int]] = []
        self.client_ids: set[str | None] = set()
        self._received = bytearray()
        self._has_changed = has_changed
        self._is_gone = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            header = parse_request_header(frame)
            request_class = messages.api(header.api_key).request_class
            request = codec.decode(request_class, header.api_version, frame, header.body_position)
            self.requests.append((request, header.api_version, header.correlation_id))
            self.client_ids.add(header.client_id)
            self._has_changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone.set()

    async def is_gone(self) -> None:
        await self._is_gone.wait()

    def answer(self, number: int, response: Message) -> None:
        request, version, correlation_id = self.requests[number]
        frame = response_header(request.API_KEY, version, correlation_id) + codec.encode(response, version)
        self.transport.write(struct.pack(">i", len(frame)) + frame)


class Other:
    """Where the other broker is, and its connections so far."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.has_changed = asyncio.Event()
        self.accepted: list[ScriptedBroker] = []
        self.address: tuple[str, int] | None = None
        self.bound: Any = None
        self.connection = PeerConnection(
            OsNetwork(),
            lambda: self.address,
            self.timers,
            "broker-1-test",
            TIMEOUT_MS,
            name="broker 2",
            credentials=credentials,
        )

    async def listen(self) -> None:
        self.bound = OsNetwork().bind("127.0.0.1", 0)
        await self.bound.listen(self._accept)
        self.address = ("127.0.0.1", self.bound.port)

    def _accept(self) -> ScriptedBroker:
        self.accepted.append(ScriptedBroker(self.has_changed))
        return self.accepted[-1]

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.fire_due()

    def ask(self, broker_id: int) -> "asyncio.Future[Any]":
        return self.connection.send(AllocateProducerIdsRequest(broker_id=broker_id), 0)

    async def asked(self, broker_id: int) -> "asyncio.Future[Any]":
        """A request that has arrived."""
        before = self.arrived
        answer = self.ask(broker_id)
        await self.have_arrived(before + 1)
        return answer

    @property
    def arrived(self) -> int:
        return sum(len(each.requests) for each in self.accepted)

    async def have_arrived(self, count: int) -> None:
        """So many requests have arrived, on all connections so far."""
        while self.arrived < count:
            self.has_changed.clear()
            await self.has_changed.wait()


@asynccontextmanager
async def other_broker(credentials: Credentials | None = None) -> AsyncIterator[Other]:
    other = Other(credentials)
    await other.listen()
    try:
        yield other
    finally:
        other.connection.close()
        other.bound.close()
        other.timers.close()
        for accepted in other.accepted:
            await accepted.is_gone()


def with_other(test: Callable[[Other], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(PATIENCE_S), other_broker() as other:
                await test(other)

        asyncio.run(main())

    run.__dict__.pop("__wrapped__")  # pytest would look for a fixture
    return run


def ids_from(first: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1)


@with_other
async def test_requests_leave_in_order_and_answers_find_their_senders(other: Other) -> None:
    answers = [other.ask(number) for number in range(3)]
    await other.have_arrived(3)
    (peer,) = other.accepted
    assert [request.broker_id for request, _, _ in peer.requests] == [0, 1, 2]  # type: ignore[attr-defined]
    assert peer.client_ids == {"broker-1-test"}
    for number in range(3):
        peer.answer(number, ids_from(number * 10))
    assert [(await answer).producer_id_start for answer in answers] == [0, 10, 20]
    later = other.ask(3)
    await other.have_arrived(4)
    peer.answer(3, ids_from(30))
    assert (await later).producer_id_start == 30
    assert len(other.accepted) == 1


@with_other
async def test_a_broken_connection_fails_its_requests(other: Other) -> None:
    """The next request opens another connection."""
    first = await other.asked(0)
    second = await other.asked(1)
    other.accepted[0].transport.abort()
    for answer in (first, second):
        with pytest.raises(PeerUnavailable, match=r"broker 2 at 127\.0\.0\.1:\d+ closed the connection"):
            await answer
    third = await other.asked(2)
    other.accepted[1].answer(0, ids_from(7))
    assert (await third).producer_id_start == 7


@with_other
async def test_a_silent_broker_costs_the_connection(other: Other) -> None:
    slow = await other.asked(0)
    patient = other.connection.send(AllocateProducerIdsRequest(broker_id=1), 0, timeout_ms=TIMEOUT_MS * 10)
    other.pass_time(TIMEOUT_MS - 1)
    assert not slow.done()
    other.pass_time(1)
    for answer in (slow, patient):
        with pytest.raises(PeerUnavailable, match=f"did not answer AllocateProducerIds within {TIMEOUT_MS} ms"):
            await answer
    await other.accepted[0].is_gone()
    again = await other.asked(2)
    other.pass_time(TIMEOUT_MS - 1)  # what was asked of the first connection ends nothing any more
    other.accepted[1].answer(0, ids_from(3))
    assert (await again).producer_id_start == 3


@with_other
async def test_unreachable_peers_fail_the_request(other: Other) -> None:
    other.bound.close()
    with pytest.raises(PeerUnavailable, match=r"broker 2 at 127\.0\.0\.1:\d+ cannot be reached: connection refused"):
        await other.ask(0)
    other.address = None
    with pytest.raises(PeerUnavailable, match="broker 2 is not alive"):
        await other.ask(1)
    other.address = ("", 0)
    with pytest.raises(PeerUnavailable, match="cannot be reached"):
        await other.ask(2)
    await other.listen()
    answer = await other.asked(3)
    other.accepted[0].answer(0, ids_from(5))
    assert (await answer).producer_id_start == 5


@with_other
async def test_a_broker_that_moved_is_asked_at_its_new_place(other: Other) -> None:
    lost = await other.asked(0)
    other.connection.follow_address()
    assert not lost.done()
    first_bound = other.bound
    await other.listen()
    other.connection.follow_address()
    with pytest.raises(PeerUnavailable, match="has gone from there"):
        await lost
    first_bound.close()
    answer = await other.asked(1)
    other.accepted[1].answer(0, ids_from(9))
    assert (await answer).producer_id_start == 9


@with_other
async def test_an_answer_to_an_abandoned_request_keeps_its_place(other: Other) -> None:
    given_up, waited_for = await other.asked(0), await other.asked(1)
    given_up.cancel()
    other.accepted[0].answer(0, ids_from(1))
    other.accepted[0].answer(1, ids_from(2))
    assert (await waited_for).producer_id_start == 2


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        (struct.pack(">iib", 5, 4711, 0), "the response to request 4711 instead of 1"),
        (struct.pack(">i", -5), "frame length -5"),
        (struct.pack(">ii", 4, 1), "not Kafka's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not Kafka's protocol"),
    ],
)
def test_nonsense_costs_the_connection(nonsense: bytes, reason: str) -> None:
    @with_other
    async def run(other: Other) -> None:
        answer = await other.asked(0)
        other.accepted[0].transport.write(nonsense)
        with pytest.raises(PeerUnavailable, match=reason):
            await answer
        await other.accepted[0].is_gone()

    run()


@with_other
async def test_an_unexpected_answer_closes_the_connection(other: Other) -> None:
    answer = await other.asked(0)
    for _ in range(2):
        other.accepted[0].answer(0, ids_from(1))
    await answer
    await other.accepted[0].is_gone()


@with_other
async def test_a_closed_connection_is_asked_nothing(other: Other) -> None:
    under_way = await other.asked(0)
    other.connection.close()
    for answer in (under_way, other.ask(1)):
        with pytest.raises(PeerUnavailable, match="the connection is closed"):
            await answer


@pytest.mark.parametrize("size", [1_000, 300_000, 3_000_000])
def test_fetched_records_stay_as_they_came(size: int) -> None:
    """Later responses are read into the same buffer, and overwrite no records of earlier ones."""

    @with_other
    async def run(other: Other) -> None:
        def response(fill: bytes) -> FetchResponse:
            data = PartitionData(partition_index=0, high_watermark=1, records=fill * size)
            return FetchResponse(responses=[FetchableTopicResponse(topic_id=bytes(16), partitions=[data])])

        answers = [other.connection.send(FetchRequest(), 17) for _ in range(3)]
        await other.have_arrived(3)
        for number, fill in enumerate((b"a", b"b", b"c")):
            other.accepted[0].answer(number, response(fill))
        fetched = [(await answer).responses[0].partitions[0].records for answer in answers]
        assert [bytes(records) for records in fetched] == [fill * size for fill in (b"a", b"b", b"c")]

    run()


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.ILLEGAL_SASL_STATE])
def test_the_secret_is_sent_first_and_delays_no_request(error: ErrorCode) -> None:
    """A broker of Apache Kafka that asks nobody for it says that it is out of place."""

    async def ask() -> None:
        async with other_broker(Credentials("broker-1", "secret")) as other:
            answer = other.ask(1)
            await other.have_arrived(3)
            (accepted,) = other.accepted
            handshake, shown, asked = (request for request, _, _ in accepted.requests)
            assert isinstance(handshake, SaslHandshakeRequest)
            assert isinstance(shown, SaslAuthenticateRequest)
            assert isinstance(asked, AllocateProducerIdsRequest)
            assert (handshake.mechanism, shown.auth_bytes) == ("PLAIN", b"\0broker-1\0secret")
            assert (other.connection.sent_count, "secret" in repr(Credentials("broker-1", "secret"))) == (1, False)
            accepted.answer(0, SaslHandshakeResponse(error_code=error))
            accepted.answer(1, SaslAuthenticateResponse(error_code=error))
            accepted.answer(2, AllocateProducerIdsResponse(producer_id_start=7))
            assert (await answer).producer_id_start == 7

    asyncio.run(ask())


def test_a_peer_whose_secret_is_refused_sends_no_request() -> None:
    async def ask() -> None:
        async with other_broker(Credentials("broker-1", "secret")) as other:
            answer = other.ask(1)
            await other.have_arrived(3)
            other.accepted[0].answer(0, SaslHandshakeResponse())
            other.accepted[0].answer(1, SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED))
            with pytest.raises(PeerUnavailable, match=r"does not accept .*: SASL_AUTHENTICATION_FAILED"):
                await answer
            other.ask(1)
            await other.have_arrived(6)  # it tries again, from the beginning
            assert [type(request).__name__ for request, _, _ in other.accepted[1].requests] == [
                "SaslHandshakeRequest",
                "SaslAuthenticateRequest",
                "AllocateProducerIdsRequest",
            ]

    asyncio.run(ask())
