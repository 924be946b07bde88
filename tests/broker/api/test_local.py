"""A client in the broker's process: what it is answered, and what holds it up as it would a connection."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.dispatch import Dispatcher
from barnabas.broker.api.large_replies import LargeReplies
from barnabas.broker.api.local import LocalClient, LocalResources
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.clock import ManualClock
from barnabas.inflight_budget import InflightBudget
from barnabas.storage.file_records import REGION_BYTES_MIN
from barnabas.testing import Broker
from barnabas.threads import OsThreads
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.record_batch import parse_header
from barnabas.wire.records import Record, build_batch, iter_records
from tests.support.manual_timers import ManualTimers

VERSION = 4
REQUEST = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")
BUDGET_BYTES = 10_000


class Bench:
    """A local client of a dispatcher that serves Heartbeat as a test says."""

    def __init__(self, handle: Callable[[Any, RequestContext], Any], request_bytes_max: int = 2**31 - 1) -> None:
        handler: Handler[Any, Any] = Handler(HeartbeatRequest.API_KEY, 0, VERSION, handle)
        services: Any = SimpleNamespace(config=SimpleNamespace(inter_broker_listener_name="BROKERS"), authorizer=None)
        self.metrics = RequestMetrics()
        find = {handler.key: handler}.get
        self.timers = ManualTimers()
        large_replies = LargeReplies(self.timers, ManualClock())
        dispatcher = Dispatcher(services, find, ManualClock(), self.metrics, large_replies)
        self.budget = InflightBudget(BUDGET_BYTES)
        resources = LocalResources(dispatcher, self.budget, request_bytes_max, self.timers, OsThreads())
        self.client = LocalClient(resources, "LISTENER", "a console")

    async def ask(self, request: HeartbeatRequest = REQUEST) -> int:
        return (await self.client.ask(request, VERSION, HeartbeatResponse)).error_code


def answer(_request: Any, _context: RequestContext) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def in_coroutine(request: Any, context: RequestContext) -> Any:
    async def later() -> HeartbeatResponse:
        await asyncio.sleep(0)
        return answer(request, context)

    return later()


def in_task(request: Any, context: RequestContext) -> Any:
    return asyncio.ensure_future(in_coroutine(request, context))


def delayed(request: Any, context: RequestContext) -> Any:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.call_soon(ready.set_result, None)
    return Delayed(ready, lambda: in_coroutine(request, context))


@pytest.mark.parametrize("handle", [answer, in_coroutine, in_task, delayed])
def test_however_a_handler_answers_the_response_comes_back(handle: Callable[[Any, RequestContext], Any]) -> None:
    async def scenario() -> None:
        bench = Bench(handle)
        assert [await bench.ask() for _ in range(2)] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        assert sum(api.count for api in bench.metrics.apis.values()) == 2
        assert bench.budget.used_bytes == 0

    asyncio.run(scenario())


def test_a_handler_gets_the_client_of_a_request() -> None:
    asked: list[tuple[Any, RequestContext]] = []

    def handle(request: Any, context: RequestContext) -> HeartbeatResponse:
        asked.append((request, context))
        return HeartbeatResponse()

    async def scenario() -> None:
        assert await Bench(handle).ask() == ErrorCode.NONE

    asyncio.run(scenario())
    [(request, context)] = asked
    assert request == REQUEST
    assert (context.client_id, context.api_version) == ("a console", VERSION)
    assert (context.session.listener.name, context.session.is_broker) == ("LISTENER", False)


def test_requests_are_served_one_after_the_other() -> None:
    served: list[str] = []

    def handle(request: Any, context: RequestContext) -> Any:
        async def later() -> HeartbeatResponse:
            served.append(f"begin {request.group_id}")
            await asyncio.sleep(0)
            served.append(f"end {request.group_id}")
            return HeartbeatResponse()

        return later()

    async def scenario() -> None:
        bench = Bench(handle)
        await asyncio.gather(*(bench.ask(HeartbeatRequest(group_id=group)) for group in "abc"))

    asyncio.run(scenario())
    assert served == [f"{what} {group}" for group in "abc" for what in ("begin", "end")]


def test_an_error_that_closes_connections_is_raised() -> None:
    def fail(_request: Any, _context: RequestContext) -> HeartbeatResponse:
        raise RuntimeError("a mistake")

    async def scenario() -> None:
        bench = Bench(fail)
        for _ in range(2):
            with pytest.raises(CloseConnection, match="an internal error"):
                await bench.ask()
        with pytest.raises(ProtocolError, match="is not served"):
            await bench.client.ask(ProduceRequest(), 9, ProduceResponse)
        with pytest.raises(ValueError, match="HeartbeatRequest has versions"):
            await bench.client.ask(REQUEST, VERSION + 1, HeartbeatResponse)

    asyncio.run(scenario())


def test_a_request_without_a_response_has_been_served() -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match="there is no response"):
            await Bench(lambda _request, _context: None).ask()

    asyncio.run(scenario())


def test_the_size_of_a_request_is_bounded() -> None:
    """By `socket.request.max.bytes`, as a connection's; by the dispatcher, too (test_dispatch.py)."""

    async def scenario() -> None:
        bench = Bench(answer, request_bytes_max=1_000)
        assert await bench.ask(HeartbeatRequest(member_id="m" * 900)) == ErrorCode.UNKNOWN_MEMBER_ID
        with pytest.raises(ProtocolError, match="1000 are allowed"):
            await bench.ask(HeartbeatRequest(member_id="m" * 1_000))
        assert bench.budget.used_bytes == 0

    asyncio.run(scenario())


class OtherConnection:
    """Holds memory of the budget."""

    def pause_for_budget(self) -> None: ...

    def resume_from_budget(self) -> None: ...


def test_requests_wait_for_memory() -> None:
    async def scenario() -> None:
        bench = Bench(answer)
        first, second = OtherConnection(), OtherConnection()
        bench.budget.report(first, BUDGET_BYTES)
        bench.budget.report(second, BUDGET_BYTES)
        asked = asyncio.ensure_future(bench.ask())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asked.done()
        bench.budget.report(first, 0)
        bench.budget.report(second, 0)
        assert await asked == ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.budget.used_bytes == 0

    asyncio.run(scenario())


def test_an_abandoned_request_frees_memory_for_the_next() -> None:
    async def scenario() -> None:
        bench = Bench(lambda _request, _context: asyncio.get_running_loop().create_future())
        asked = [asyncio.ensure_future(bench.ask()) for _ in range(3)]
        await asyncio.sleep(0)
        assert bench.budget.used_bytes > 0
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert bench.budget.used_bytes == 0
        assert not bench.client._in_order.locked()

    asyncio.run(scenario())


def test_a_client_beyond_its_quota_waits() -> None:
    def throttle(_request: Any, context: RequestContext) -> HeartbeatResponse:
        context.session.throttle(500)
        context.session.throttle(100)
        return HeartbeatResponse(throttle_time_ms=500)

    async def scenario() -> None:
        bench = Bench(throttle)
        await bench.ask()
        asked = asyncio.ensure_future(bench.ask())
        for delay_ms in (100, 500):
            for _ in range(5):
                await asyncio.sleep(0)
            assert not asked.done()
            bench.timers.fire(delay_ms)
        assert await asked == ErrorCode.NONE

    asyncio.run(scenario())


def test_records_that_are_in_files() -> None:
    """Of a large fetch only the place is found: its records are read in a thread."""
    records = [Record(number, 1_000, None, bytes(1_000)) for number in range(REGION_BYTES_MIN // 1_000 + 10)]

    async def scenario(server: Any) -> None:
        resources = LocalResources(server.dispatcher, InflightBudget(2**30), 2**30, ManualTimers(), OsThreads())
        client = LocalClient(resources, server.config.listeners[0].name, "a console")
        data = PartitionProduceData(index=0, records=bytes(build_batch(records)))
        produce = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        produced = await client.ask(produce, 9, ProduceResponse)
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**30)
        fetch = FetchRequest(max_wait_ms=0, max_bytes=2**30, topics=[FetchTopic(topic="t", partitions=[partition])])
        fetched = (await client.ask(fetch, 12, FetchResponse)).responses[0].partitions[0].records
        assert len(fetched) > REGION_BYTES_MIN
        assert list(iter_records(fetched, parse_header(fetched))) == records

    with Broker() as broker:
        broker.create_topic("t")
        broker.call(scenario(broker.server))
