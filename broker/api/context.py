"""What a handler knows about the request that it serves."""

from barnabas.broker.services import Services


class RequestContext:
    """One request's surroundings; lives until its response is written.

    `services` are the parts of the broker that serve it, `listener_name` decides which advertised addresses a reply
    carries, `client_host` is the peer's address as text.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "connection_id",
        "correlation_id",
        "listener_name",
        "services",
    )

    def __init__(
        self,
        services: Services,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        listener_name: str,
        client_host: str,
        connection_id: int,
    ) -> None:
        self.services = services
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.listener_name = listener_name
        self.client_host = client_host
        self.connection_id = connection_id
