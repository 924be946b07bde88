"""Requests to a broker in this process, without a socket: its own handlers validate and serve them."""

import inspect
from dataclasses import replace
from typing import Any

from barnabas.broker.api.context import RequestContext
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import Delayed
from barnabas.broker.network.session import Session
from barnabas.broker.server import Broker as Server

CLIENT_ID = "barnabas.testing"
NO_CONNECTION_ID = -1


async def ask(server: Server, request: Any, version: int) -> Any:
    """The response to a request message, as a client of that version would receive it that may do everything. Broker's
    loop only."""
    listener = ListenerContext.of(server.config, server.config.listeners[0].name)
    context = RequestContext(
        services=replace(server.services, authorizer=None),
        session=Session(None, listener, NO_CONNECTION_ID, client_host="127.0.0.1"),
        api_key=request.API_KEY,
        api_version=version,
        correlation_id=0,
        client_id=CLIENT_ID,
    )
    answer = load_handler(request.API_KEY).handle(request, context)
    if isinstance(answer, Delayed):
        await answer.ready
        answer = answer.resume()
    return await answer if inspect.isawaitable(answer) else answer
