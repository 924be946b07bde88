"""What a handler knows about the request that it serves."""

from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session
from barnabas.broker.services import Services
from barnabas.controller.coordination.interface import CoordinationError


class RequestContext:
    """One request's surroundings; lives until its response is written.

    `services` are the parts of the broker that serve it, `session` is what is known of its client. The rest is of its
    header.
    """

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id", "services", "session")

    def __init__(
        self,
        services: Services,
        session: Session,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
    ) -> None:
        self.services = services
        self.session = session
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    @property
    def is_on_inter_broker_listener(self) -> bool:
        """Whether the request came over the inter-broker listener, to which clients may have access, too."""
        return self.session.listener_name == self.services.config.inter_broker_listener_name

    async def is_commanded_by(self, controller_id: int) -> bool:
        """Whether the sender of a controller's command is registered as a broker: if not, it is no controller, or its
        session is over. Raises: CloseConnection, where that cannot be read, so that the command is sent again.
        """
        try:
            return await self.services.controller.is_registered(controller_id)
        except CoordinationError as error:
            raise CloseConnection(f"whether broker {controller_id} is registered cannot be read: {error}") from error

    def came_from_broker(self) -> None:
        """The request is one that coordinators and leaders send each other: where there are other brokers, its
        connection is one of theirs, which limits made against clients do not hold up (`Session.belongs_to_broker`).
        """
        if self.is_on_inter_broker_listener and len(self.services.metadata.broker_ids()) > 1:
            self.session.belongs_to_broker()
