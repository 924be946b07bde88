"""From a frame to the parts of its reply, with handlers of the test's own and neither broker nor socket."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.dispatch import REQUEST_BYTES_MAX, Dispatcher
from barnabas.broker.api.large_replies import LargeReplies
from barnabas.broker.api.large_requests import LARGE_REQUEST_BYTES, SERVED_BYTES_MAX
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.handlers import api_versions
from barnabas.broker.handlers.produce import ELEMENTS_AT_ONCE
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.broker.network.session import ANONYMOUS, Session
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.clock import ManualClock
from barnabas.wire.codec import decode
from barnabas.wire.errors import ErrorCode, ProtocolError, TooManyElements
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.reader_source import ELEMENTS_MAX
from barnabas.wire.schema import Message
from tests.support.manual_timers import ManualTimers
from tools.attack.hostile import frame

HEARTBEAT, LIST_GROUPS = HeartbeatRequest.API_KEY, ListGroupsRequest.API_KEY
CREATE_PARTITIONS = CreatePartitionsRequest.API_KEY
PRODUCE = ProduceRequest.API_KEY
HEADER_BYTES = 4 + 4
"""Length and correlation id, with which a reply of a version begins that is not flexible."""


class Bench:
    """A dispatcher that serves Heartbeat 0-3, ListGroups 0-2 (whose replies may be large), CreatePartitions 0 (which
    waits for the controller), Produce 8 and ApiVersions. `held` is what its connection says that it holds, in bytes."""

    def __init__(self, handle: Callable[[Any, RequestContext], Any]) -> None:
        served = ((HEARTBEAT, 3), (LIST_GROUPS, 2), (CREATE_PARTITIONS, 0), (PRODUCE, 8))
        handlers: dict[int, Handler[Any, Any]] = {
            key: Handler(key, 0, last, handle, has_large_replies=key == LIST_GROUPS) for key, last in served
        }
        handlers[CREATE_PARTITIONS] = replace(handlers[CREATE_PARTITIONS], waits_for=WaitsFor.CONTROLLER)
        handlers[PRODUCE] = replace(handlers[PRODUCE], elements_at_once=ELEMENTS_AT_ONCE)
        handlers[api_versions.HANDLER.key] = api_versions.HANDLER
        self.handlers = handlers
        self.connections = SimpleNamespace(is_crowded=False, has_room=asyncio.Event())
        self.metrics = RequestMetrics()
        services: Any = SimpleNamespace(connections=self.connections, authorizer=None)
        self.session = Session(None, ListenerContext("LISTENER"), 7, client_host="10.0.0.1")
        self._connection: Any = SimpleNamespace(session=self.session, hold=self._hold)
        self.held = 0
        self.dispatcher = Dispatcher(
            services, handlers.get, ManualClock(), self.metrics, LargeReplies(ManualTimers(), ManualClock())
        )

    def _hold(self, size: int) -> None:
        self.held += size

    def dispatch(self, request: Message, version: int) -> Any:
        return self.dispatch_bytes(frame(request, version)[4:])

    def dispatch_bytes(self, data: bytes) -> Any:
        return self.dispatcher.dispatch(memoryview(bytearray(data)), self._connection)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


def error_of(parts: Any) -> ErrorCode:
    return ErrorCode.of(decode(HeartbeatResponse, 0, b"".join(parts), HEADER_BYTES).error_code)


def refuse(_request: Any, _context: RequestContext) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


@in_loop
async def test_a_request_is_decoded_and_its_response_encoded() -> None:
    asked: list[tuple[Any, RequestContext]] = []

    def handle(request: Any, context: RequestContext) -> HeartbeatResponse:
        asked.append((request, context))
        return refuse(request, context)

    bench = Bench(handle)
    parts = bench.dispatch(HeartbeatRequest(group_id="g", generation_id=5, member_id="m"), 0)
    reply = b"".join(parts)
    assert int.from_bytes(reply[:4]) == len(reply) - 4
    assert error_of(parts) is ErrorCode.UNKNOWN_MEMBER_ID
    ((request, context),) = asked
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 5, "m")
    assert (context.api_key, context.api_version) == (HEARTBEAT, 0)
    assert context.session is bench.session
    assert (context.session.listener.name, context.session.principal) == ("LISTENER", ANONYMOUS)
    assert sum(api.count for api in bench.metrics.apis.values()) == 1


@in_loop
async def test_a_request_without_a_reply_has_none() -> None:
    assert Bench(lambda _request, _context: None).dispatch(HeartbeatRequest(), 0) is None


@in_loop
async def test_an_api_that_is_not_served_closes_the_connection() -> None:
    bench = Bench(refuse)
    for data in (b"\0\x63\0\0" + b"\0" * 20, frame(HeartbeatRequest(), 4)[4:], b"\0\x0c", b""):
        with pytest.raises(ProtocolError):
            bench.dispatch_bytes(data)


@in_loop
async def test_only_produce_may_be_large() -> None:
    with pytest.raises(ProtocolError, match="are allowed"):
        Bench(refuse).dispatch_bytes(frame(HeartbeatRequest(), 0)[4:] + b"\0" * REQUEST_BYTES_MAX)


@in_loop
async def test_api_versions_of_another_version_are_told_the_right_ones() -> None:
    """KIP-511: the reply is of version 0, whatever was asked."""
    data = bytearray(frame(ApiVersionsRequest(), 3)[4:])
    data[2:4] = (99).to_bytes(2)
    parts: Any = Bench(refuse).dispatch_bytes(bytes(data))
    response = decode(ApiVersionsResponse, 0, b"".join(parts), HEADER_BYTES)
    assert ErrorCode.of(response.error_code) is ErrorCode.UNSUPPORTED_VERSION
    assert [api.api_key for api in response.api_keys] == [api_versions.HANDLER.key]


@pytest.mark.parametrize("has_large_replies", [False, True])
@in_loop
async def test_requests_between_brokers_are_not_served_to_clients(has_large_replies: bool) -> None:
    bench = Bench(lambda _request, _context: pytest.fail("it was served"))
    bench.handlers[LIST_GROUPS] = replace(
        bench.handlers[LIST_GROUPS], is_inter_broker=True, has_large_replies=has_large_replies
    )
    outcome = bench.dispatch(ListGroupsRequest(), 0)
    parts = await outcome if isinstance(outcome, Awaitable) else outcome
    response = decode(ListGroupsResponse, 0, b"".join(parts), HEADER_BYTES)
    assert ErrorCode.of(response.error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@in_loop
async def test_an_unforeseen_error_is_logged_and_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_request: Any, _context: RequestContext) -> HeartbeatResponse:
        raise ZeroDivisionError("as asked")

    async def fail_later(request: Any, context: RequestContext) -> HeartbeatResponse:
        return fail(request, context)

    for handle in (fail, fail_later):
        caplog.clear()
        with caplog.at_level(logging.ERROR), pytest.raises(CloseConnection, match="ZeroDivisionError"):
            await Bench(handle).dispatch(HeartbeatRequest(), 0)
        assert "10.0.0.1" in caplog.text
        assert "as asked" in caplog.text


@in_loop
async def test_a_coroutine_is_awaited_a_future_goes_on_by_itself() -> None:
    answered = asyncio.Event()

    async def handle(request: Any, context: RequestContext) -> HeartbeatResponse:
        await answered.wait()
        return refuse(request, context)

    coroutine = Bench(handle).dispatch(HeartbeatRequest(), 0)
    assert inspect.iscoroutine(coroutine)
    future = Bench(lambda *given: asyncio.ensure_future(handle(*given))).dispatch(HeartbeatRequest(), 0)
    assert isinstance(future, asyncio.Future)
    answered.set()
    for outcome in (coroutine, future):
        assert error_of(await outcome) is ErrorCode.UNKNOWN_MEMBER_ID


@in_loop
async def test_no_task_waits_for_a_future() -> None:
    """A replicated topic has a future for each Produce that is under way."""
    error = ZeroDivisionError("as asked")
    ends: list[tuple[Callable[[asyncio.Future[Any]], Any], Callable[[asyncio.Future[Any]], bool]]] = [
        (lambda later: later.set_result(HeartbeatResponse()), lambda outcome: error_of(outcome.result()) == 0),
        (lambda later: later.set_exception(error), lambda outcome: isinstance(outcome.exception(), CloseConnection)),
        (lambda later: later.cancel(), lambda outcome: outcome.cancelled()),
    ]
    for end, is_as_expected in ends:
        later: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outcome = Bench(lambda *_given, later=later: later).dispatch(HeartbeatRequest(), 0)
        assert not outcome.done()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        end(later)
        await asyncio.wait([outcome])
        assert is_as_expected(outcome)


@in_loop
async def test_a_delayed_answer_is_encoded_when_it_is_resumed() -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bench = Bench(lambda request, context: Delayed(ready, lambda: refuse(request, context)))
    outcome = bench.dispatch(HeartbeatRequest(), 0)
    assert isinstance(outcome, Delayed)
    assert outcome.ready is ready
    assert sum(api.count for api in bench.metrics.apis.values()) == 0
    assert error_of(outcome.resume()) is ErrorCode.UNKNOWN_MEMBER_ID


@in_loop
async def test_large_replies_are_made_one_after_the_other() -> None:
    made: list[str] = []

    def handle(_request: Any, _context: RequestContext) -> ListGroupsResponse:
        made.append("reply")
        asyncio.get_running_loop().call_soon(made.append, "others")
        return ListGroupsResponse()

    bench = Bench(handle)
    await asyncio.gather(*[bench.dispatch(ListGroupsRequest(), 0) for _ in range(3)])
    await asyncio.sleep(0)
    assert made == ["reply", "others"] * 3


@in_loop
async def test_large_replies_wait_for_memory() -> None:
    bench = Bench(lambda _request, _context: ListGroupsResponse())
    bench.connections.is_crowded = True
    waiting = asyncio.ensure_future(bench.dispatch(ListGroupsRequest(), 0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    bench.connections.is_crowded = False
    bench.connections.has_room.set()
    assert await waiting is not None


@in_loop
async def test_large_requests_wait_for_each_other() -> None:
    """Those of the controller wait by themselves."""
    answered = asyncio.Event()
    begun: list[int] = []

    async def handle(request: Any, context: RequestContext) -> Message:
        begun.append(context.api_key)
        if context.api_key == CREATE_PARTITIONS:
            await answered.wait()
            return CreatePartitionsResponse()
        return refuse(request, context)

    def large(request: Message, size: int) -> asyncio.Future[Any]:
        return asyncio.ensure_future(bench.dispatch_bytes(frame(request, 0)[4:] + b"\0" * size))

    bench = Bench(handle)
    first, second = (large(CreatePartitionsRequest(), SERVED_BYTES_MAX) for _ in range(2))
    other = large(HeartbeatRequest(), LARGE_REQUEST_BYTES)
    for _ in range(10):
        await asyncio.sleep(0)
    assert other.done()
    assert error_of(other.result()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert begun == [CREATE_PARTITIONS, HEARTBEAT]
    assert bench.held > SERVED_BYTES_MAX, "the second one waits as it came in"
    gone = large(CreatePartitionsRequest(), LARGE_REQUEST_BYTES)
    await asyncio.sleep(0)
    gone.cancel()
    answered.set()
    await asyncio.gather(first, second)
    assert begun == [CREATE_PARTITIONS, HEARTBEAT, CREATE_PARTITIONS]
    assert bench.held == 0


@in_loop
async def test_produce_requests_of_many_partitions_wait_in_turn() -> None:
    """Most Produce requests have many bytes: that is no reason to wait."""
    answered = asyncio.Event()
    begun: list[int] = []

    async def handle(request: ProduceRequest, _context: RequestContext) -> ProduceResponse:
        partitions = request.topic_data[0].partition_data
        begun.append(len(partitions))
        await answered.wait()
        assert all(bytes(data.records) == records for data in partitions), "the frame is there as long as it is used"
        return ProduceResponse()

    def produce(partitions: int, records: bytes) -> asyncio.Future[Any]:
        data = [PartitionProduceData(index=index, records=records) for index in range(partitions)]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        return asyncio.ensure_future(bench.dispatch(request, 8))

    records = b"r" * (SERVED_BYTES_MAX // ELEMENTS_AT_ONCE)
    bench = Bench(handle)
    wide = [produce(ELEMENTS_AT_ONCE, records) for _ in range(3)]
    narrow = [produce(ELEMENTS_AT_ONCE - 1, records) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert sorted(begun) == [*[ELEMENTS_AT_ONCE - 1] * 3, ELEMENTS_AT_ONCE]
    assert 5 * SERVED_BYTES_MAX < bench.held < 7 * SERVED_BYTES_MAX, "those in progress are in memory, too"
    answered.set()
    await asyncio.gather(*wide, *narrow)
    assert begun.count(ELEMENTS_AT_ONCE) == 3
    assert bench.held == 0


@pytest.mark.parametrize("ends", ["answered", "failed", "cancelled"])
@in_loop
async def test_a_large_produce_request_counts_until_it_is_done(ends: str) -> None:
    """Its records are there until they are appended, which may wait for a thread; those of a small one are few."""
    answered = asyncio.Event()

    async def handle(_request: ProduceRequest, _context: RequestContext) -> ProduceResponse:
        await answered.wait()
        if ends == "failed":
            raise CloseConnection("as asked")
        return ProduceResponse()

    def produce(size: int) -> asyncio.Future[Any]:
        data = [PartitionProduceData(index=0, records=bytes(size))]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        return asyncio.ensure_future(bench.dispatch(request, 8))

    bench = Bench(handle)
    requests = [produce(size) for size in (LARGE_REQUEST_BYTES // 2, 2 * SERVED_BYTES_MAX)]
    assert 2 * SERVED_BYTES_MAX < bench.held < 2 * SERVED_BYTES_MAX + LARGE_REQUEST_BYTES // 2, "at once"
    await asyncio.sleep(0)
    if ends == "cancelled":
        for request in requests:
            request.cancel()
    answered.set()
    await asyncio.gather(*requests, return_exceptions=True)
    assert bench.held == 0


@in_loop
async def test_too_many_elements_in_produce_close_the_connection() -> None:
    bench = Bench(refuse)
    data = [PartitionProduceData(index=0, records=b"")] * ELEMENTS_MAX
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    with pytest.raises(TooManyElements):
        await bench.dispatch(request, 8)
    assert bench.held == 0


@pytest.mark.parametrize("length", [1, 10_000])
@in_loop
async def test_the_session_remembers_what_the_client_says_it_is(length: int) -> None:
    """KIP-511; not all of it, since a connection may stay for ever."""
    session = Session(None, ListenerContext("LISTENER"), 1)
    session.introduce("n" * length, "1" * length)
    assert session.client_software_name == "n" * min(length, 100)
    assert session.client_software_version == "1" * min(length, 100)


@pytest.mark.parametrize("is_inter_broker", [False, True])
def test_a_client_may_do_everything_but_what_is_for_brokers(is_inter_broker: bool) -> None:
    services: Any = SimpleNamespace(authorizer=None)
    session = Session(None, ListenerContext("LISTENER", is_inter_broker=is_inter_broker), 1)
    context = RequestContext(services, session, PRODUCE, 9, 1, "client")
    assert context.authorize(Operation.WRITE, ResourceType.TOPIC, "t")
    assert context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME) == is_inter_broker
