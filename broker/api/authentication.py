"""A listener on which only authenticated connections are served: requests before the SASL handshake are refused.

Source: SaslServerAuthenticator of Kafka, which serves ApiVersions before the handshake, too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from barnabas.broker.network.outcome import Outcome
from barnabas.wire import messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection, RequestServer

AUTHENTICATION_APIS: Final = (SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY)
_BEFORE: Final = (ApiVersionsRequest.API_KEY, *AUTHENTICATION_APIS)

_API_KEY: Final = struct.Struct(">h")


class AuthenticatedRequests:
    """Passes requests to `requests` only from connections that have authenticated."""

    def __init__(self, requests: RequestServer) -> None:
        self.clock = requests.clock
        self._requests = requests

    def dispatch(self, frame: memoryview | bytearray, connection: Connection) -> Outcome:
        """Serve one request. Raises ProtocolError for a request before authentication, or as `requests` does."""
        if not connection.session.is_authenticated and len(frame) >= _API_KEY.size:
            (key,) = _API_KEY.unpack_from(frame)
            if key not in _BEFORE:
                raise ProtocolError(f"{messages.API_NAMES.get(key, key)} before the handshake of SASL")
        return self._requests.dispatch(frame, connection)
