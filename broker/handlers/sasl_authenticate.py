"""SaslAuthenticate (key 36): authenticate, by the mechanism of SaslHandshake.   Version 2.

Behaviour: between brokers, on their listener. A connection that sends a broker's secret belongs to that broker from
then on (`broker/security/broker_secrets.py`). After SASL_AUTHENTICATION_FAILED the connection is closed, so that each
guess costs one. It is also closed if the metadata store, which has the registrations, cannot be read: the other broker
retries.
Errors: ILLEGAL_SASL_STATE (without a handshake, or again), SASL_AUTHENTICATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.
Authorization: none, as in Kafka: it is the authentication.
Versions: 2 flexible.
"""

import logging

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security import sasl_plain
from barnabas.broker.security.broker_secrets import broker_of_username
from barnabas.controller.coordination.interface import CoordinationError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

logger = logging.getLogger(__name__)

_FAILED = "Authentication failed: Invalid username or password"
"""Kafka's message: it does not reveal which of the two was wrong."""


async def handle(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    session = context.session
    if session.is_broker or session.sasl_mechanism is None:
        told = "SaslAuthenticate comes once, after SaslHandshake"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=told)
    shown = sasl_plain.decode(request.auth_bytes)
    broker_id = -1 if shown is None else broker_of_username(shown.username)
    if shown is None or broker_id < 0 or not await _is_shown(broker_id, shown.password, context):
        logger.warning("a client at %s has shown no secret of a broker", session.client_host)
        refused = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=_FAILED)
        raise CloseConnection("SaslAuthenticate was refused", refused)
    session.principal = f"User:{shown.username}"
    session.belongs_to_broker(broker_id)
    return SaslAuthenticateResponse(error_message=None)


async def _is_shown(broker_id: int, secret: str, context: RequestContext) -> bool:
    try:
        return await context.services.broker_secrets.is_shown(broker_id, secret)
    except CoordinationError as error:
        raise CloseConnection(f"the registration of broker {broker_id} cannot be read: {error}") from error


HANDLER: Handler[SaslAuthenticateRequest, SaslAuthenticateResponse] = Handler(
    key=36, min_version=2, max_version=2, handle=handle, is_inter_broker=True
)
