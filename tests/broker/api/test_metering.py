"""However a handler answers, its request is metered: the steps of it, and once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.metering import EXEMPT, Metering
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.broker.network.session import Session
from barnabas.broker.quotas.client_quotas import ClientQuotas
from barnabas.broker.quotas.entities import QuotaEntity
from barnabas.broker.quotas.rates import QuotaWindow
from barnabas.clock import ManualClock
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

pytestmark = pytest.mark.anyio

STEP_S = 0.05
"""The work of each step of a handler: half a second of it is the quota of a window."""


class Bench:
    """A client that is throttled, and handlers whose steps take time of the work's clock alone."""

    def __init__(self) -> None:
        clock = ManualClock()
        quotas = ClientQuotas(QuotaWindow(11, 1_000), QuotaWindow(11, 1_000), clock, clock)
        quotas.request.limits.set(QuotaEntity("ANONYMOUS"), 5)
        self._now_s = 0.0
        self.throttled_ms: list[int] = []
        self.session = Session(self, ListenerContext("PLAINTEXT"), 1)
        self.metering = Metering(quotas, lambda: self._now_s)
        self.request_percents = quotas.request

    def throttle(self, throttle_time_ms: int) -> None:
        self.throttled_ms.append(throttle_time_ms)

    def exempt(self) -> None:
        pass

    def work(self) -> None:
        self._now_s += STEP_S

    async def ask(self, handle: Callable[[Any, RequestContext], Any], key: int = HeartbeatRequest.API_KEY) -> Any:
        services: Any = type("Services", (), {"authorizer": None})()
        context = self.metering.context(services, self.session, key, 0, 1, "app", 100)
        handler: Handler[Any, Any] = Handler(key, 0, 0, handle)
        outcome = self.metering.metered(handler, handle)(HeartbeatRequest(), context)
        while isinstance(outcome, Delayed):
            await outcome.ready
            outcome = outcome.resume()
        return await outcome if asyncio.isfuture(outcome) or asyncio.iscoroutine(outcome) else outcome

    def used_s(self) -> float:
        sensor = self.request_percents.sensors.find("ANONYMOUS", "app", 0)
        assert sensor is not None
        return round(sensor.usage.measure(0) * 10 / 100, 6)


def at_once(bench: Bench) -> Callable[..., Any]:
    def handle(_request: Any, _context: RequestContext) -> HeartbeatResponse:
        bench.work()
        return HeartbeatResponse()

    return handle


def in_coroutine(bench: Bench) -> Callable[..., Any]:
    async def handle(_request: Any, _context: RequestContext) -> HeartbeatResponse:
        bench.work()
        asyncio.get_running_loop().call_soon(bench.work)  # work of others meanwhile
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bench.work()
        return HeartbeatResponse()

    return handle


def delayed(bench: Bench) -> Callable[..., Any]:
    def handle(request: Any, context: RequestContext) -> Delayed:
        bench.work()
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        return Delayed(ready, lambda: at_once(bench)(request, context))

    return handle


def in_future(bench: Bench) -> Callable[..., Any]:
    def handle(_request: Any, _context: RequestContext) -> Any:
        bench.work()
        response = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(response.set_result, HeartbeatResponse())
        return response

    return handle


@pytest.mark.parametrize(
    ("make", "steps"), [(at_once, 1), (in_coroutine, 2), (delayed, 2), (in_future, 1)], ids=lambda it: str(it)[:20]
)
async def test_each_step_counts_once(make: Callable[[Bench], Callable[..., Any]], steps: int) -> None:
    bench = Bench()
    response = await bench.ask(make(bench))
    assert response.throttle_time_ms == 0
    assert bench.used_s() == pytest.approx(steps * STEP_S)
    for _ in range(11):
        response = await bench.ask(make(bench))
    assert response.throttle_time_ms > 0
    assert bench.throttled_ms[-1] == response.throttle_time_ms


async def test_a_request_that_fails_counts() -> None:
    bench = Bench()

    def fail(_request: Any, _context: RequestContext) -> None:
        bench.work()
        raise CloseConnection("as asked")

    async def fail_later(_request: Any, _context: RequestContext) -> None:
        await asyncio.sleep(0)
        fail(None, _context)

    for handle in (fail, fail_later):
        with pytest.raises(CloseConnection):
            await bench.ask(handle)
    assert bench.used_s() == pytest.approx(2 * STEP_S)


async def test_a_request_that_is_cancelled_ends_as_it_would() -> None:
    """The handler hears of it, and what it did counts."""
    bench = Bench()
    heard = []

    async def wait(_request: Any, _context: RequestContext) -> None:
        bench.work()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    task = asyncio.create_task(bench.ask(wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]
    assert bench.used_s() == pytest.approx(STEP_S)


async def test_what_is_exempt_is_handled_as_before() -> None:
    bench = Bench()
    for key in EXEMPT:
        await bench.ask(at_once(bench), key)
    bench.session.belongs_to_broker(2)
    await bench.ask(at_once(bench))
    bench.session.is_broker = False
    assert bench.used_s() == 0
