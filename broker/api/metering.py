"""Requests that count for the quotas of their clients: the dispatcher has them pass through here once a quota exists.

A client beyond a quota is answered at once, with the throttle time, and its connection begins no other request before
that time has passed (KIP-219). Requests of other brokers do not count, nor those of SASL.

The time of a request is that of its handler on the event loop, in all its steps. Waits do not count, nor what threads
do meanwhile, nor decoding, encoding and sending.

Source: kafka 3.9.1 RequestHandlerHelper, ClientRequestQuotaManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import Delayed
from barnabas.broker.network.session import Session
from barnabas.broker.quotas.client_quotas import ClientQuotas
from barnabas.broker.quotas.meter import Meter
from barnabas.broker.services import Services
from barnabas.wire.messages.fetch import FetchRequest
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from barnabas.wire.schema import Message

EXEMPT: Final = (WriteTxnMarkersRequest.API_KEY, SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY)
"""APIs for clients that do not count."""


class MeteredContext(RequestContext):
    """The context of a request whose client may have quotas; `meter` is None for another broker."""

    __slots__ = ("meter",)


class Metering:
    """Meters the requests of a dispatcher; `work_s` measures the time in which the broker works."""

    def __init__(self, quotas: ClientQuotas, work_s: Callable[[], float]) -> None:
        self._quotas = quotas
        self._work_s = work_s

    def context(
        self,
        services: Services,
        session: Session,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        request_bytes: int = 0,
    ) -> RequestContext:
        """The context of a request, with a meter unless it comes from another broker."""
        context = MeteredContext(services, session, api_key, api_version, correlation_id, client_id)
        context.meter = (
            None
            if session.is_broker
            else Meter(self._quotas, session.principal, client_id, request_bytes, self._work_s)
        )
        return context

    def metered(self, handler: Handler[Any, Any], handle: Callable[..., Any]) -> Callable[..., Any]:
        """`handle`, the function of an API, with its requests metered unless they are exempt."""
        if handler.is_inter_broker or handler.key in EXEMPT:
            return handle
        return partial(_serve, handle)


def _serve(handle: Callable[..., Any], request: Message, context: RequestContext) -> Any:
    """Handle one request; the outcome is of the same kind as the handler's."""
    if context.meter is None:
        return handle(request, context)
    if isinstance(request, FetchRequest):
        request.max_bytes = context.meter.most_to_fetch(request.max_bytes)
    return _step(context, context.meter, handle, request, context)


def _step(context: RequestContext, meter: Meter, handle: Callable[..., Any], *arguments: Any) -> Any:
    meter.begin()
    try:
        response = handle(*arguments)
    except BaseException:
        meter.end()
        _settle(context, meter, None)
        raise
    meter.end()
    if response is None or isinstance(response, Message):
        return _settle(context, meter, response)
    if isinstance(response, Delayed):
        response.resume = partial(_step, context, meter, response.resume)
        return response
    if isinstance(response, asyncio.Future):
        response.add_done_callback(partial(_settle_done, context, meter))
        return response
    return _settle_later(context, meter, response)


def _settle_done(context: RequestContext, meter: Meter, response: "asyncio.Future[Any]") -> None:
    is_lost = response.cancelled() or response.exception() is not None
    _settle(context, meter, None if is_lost else response.result())


async def _settle_later(context: RequestContext, meter: Meter, rest: Awaitable[Any]) -> Any:
    response = None
    try:
        response = await _Timed(meter, rest)
    finally:
        _settle(context, meter, response)
    return response


def _settle(context: RequestContext, meter: Meter, response: Any) -> Any:
    """Count a request that is done, and throttle its client if need be; `response` is None if there is none."""
    if context.api_key == ProduceRequest.API_KEY:
        meter.count_produced(has_response=response is not None)
    elif context.api_key != FetchRequest.API_KEY:
        meter.count()
    if meter.throttle_time_ms:
        meter.note_throttle()
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = meter.throttle_time_ms
        context.session.throttle(meter.throttle_time_ms)
    return response


class _Timed:
    """Awaits the rest of a request, and measures its steps."""

    def __init__(self, meter: Meter, rest: Awaitable[Any]) -> None:
        self._meter = meter
        self._rest = rest if isinstance(rest, Coroutine) else _waiting_for(rest)

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._rest.send
        argument: Any = None
        while True:
            self._meter.begin()
            try:
                waited_for = step(argument)
            except StopIteration as end:
                return end.value
            finally:
                self._meter.end()
            try:
                argument, step = (yield waited_for), self._rest.send
            except BaseException as error:  # noqa: BLE001 - a cancellation, for the rest
                argument, step = error, self._rest.throw


async def _waiting_for(rest: Awaitable[Any]) -> Any:
    return await rest
