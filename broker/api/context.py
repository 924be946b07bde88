"""What a handler knows about the request that it serves."""

from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session, broker_of_client_id
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
            is_registered = await self.services.controller.is_registered(controller_id)
        except CoordinationError as error:
            raise CloseConnection(f"whether broker {controller_id} is registered cannot be read: {error}") from error
        if is_registered and controller_id != self.services.node_id:
            self.session.belongs_to_broker()
        return is_registered

    def came_from(self, broker_id: int) -> None:
        """The request is one that brokers send each other: limits made against clients do not hold up the connection of
        another one that lives (`Session.belongs_to_broker`). What a request says of its sender counts, as always on
        the inter-broker listener."""
        services = self.services
        if self.is_on_inter_broker_listener and broker_id != services.node_id and services.metadata.is_alive(broker_id):
            self.session.belongs_to_broker()

    def came_from_broker(self) -> None:
        """As `came_from`, for a request in which nothing but the client id says which broker sent it."""
        self.came_from(broker_of_client_id(self.client_id))
