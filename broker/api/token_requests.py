"""What the requests of delegation tokens have in common (KIP-48)."""

from typing import Final

from barnabas.broker.api.context import RequestContext
from barnabas.broker.configuration.listeners import PLAINTEXT, SSL

NO_TIMESTAMP: Final = -1
"""The timestamps in the response to a request that is not allowed (DelegationTokenManager.ErrorTimestamp)."""


def may_ask_for_tokens(context: RequestContext) -> bool:
    """Whether delegation tokens may be requested over this connection: the client has authenticated, by other means
    than a delegation token (KafkaApis.allowTokenRequests)."""
    session = context.session
    login, protocol = session.login, session.listener.security_protocol
    if protocol == PLAINTEXT or (protocol == SSL and not session.is_authenticated):
        return False
    return login is None or login.identity is None or not login.identity.is_token
