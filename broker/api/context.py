"""A request's context for its handler."""

from typing import TYPE_CHECKING

from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session, broker_of_client_id
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.operations import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType, bits
from barnabas.broker.services import Services
from barnabas.controller.coordination.interface import CoordinationError

if TYPE_CHECKING:
    from barnabas.broker.quotas.meter import Meter


class RequestContext:
    """The context of one request; lives until its response is written.

    `services` are the parts of the broker that serve it, `session` is its client's connection state. The other
    attributes come from its header. `request_bytes` is for contexts with a `meter` (`MeteredContext`), which exist once
    there is a quota.
    """

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id", "services", "session")

    meter: "Meter | None" = None
    """Counts the request for the quotas of its client; None where there is none."""

    def __init__(
        self,
        services: Services,
        session: Session,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        request_bytes: int = 0,
    ) -> None:
        self.services = services
        self.session = session
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer that decides what the client may do; None where it may do everything: without an authorizer,
        and for another broker of the cluster."""
        return None if self.session.is_broker else self.services.authorizer

    @property
    def is_on_inter_broker_listener(self) -> bool:
        """Whether the request came over the inter-broker listener, which clients may be able to reach, too."""
        return self.session.listener.is_inter_broker

    def authorize(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do this with the resource of this name. What is for brokers alone (CLUSTER_ACTION)
        must come over the inter-broker listener as well. For many resources look at `authorizer` first: None allows
        all."""
        if operation is Operation.CLUSTER_ACTION and not self.session.listener.is_inter_broker:
            return False
        session = self.session
        authorizer = self.services.authorizer
        return (
            authorizer is None
            or session.is_broker
            or authorizer.authorize(session.principal, session.client_host, operation, resource_type, name)
        )

    def authorized_operations(self, resource_type: ResourceType, name: str) -> int:
        """The bit field of what the client may do with a resource (KIP-430)."""
        operations, authorizer = SUPPORTED_OPERATIONS[resource_type], self.authorizer
        if authorizer is None:
            return bits(operations)
        principal, host = self.session.principal, self.session.client_host
        return bits(each for each in operations if authorizer.authorize(principal, host, each, resource_type, name))

    @property
    def _may_be_broker(self) -> bool:
        """Whether a client that has shown no secret may be a broker: on the inter-broker listener, and with an
        authorizer only if it may act for the cluster."""
        return self.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)

    def comes_from(self, broker_id: int) -> bool:
        """Whether the request comes from a broker, as far as this one knows the registrations: its connection has sent
        that broker's secret, or is on the inter-broker listener and the broker has no secret (`BrokerSecrets`); with an
        authorizer it must be allowed ClusterAction, too. If so, the limits of clients and the authorizer do not apply
        to that connection (`Session.belongs_to_broker`)."""
        session = self.session
        if session.is_broker:
            return session.broker_id == broker_id
        if not (
            self.is_on_inter_broker_listener
            and self.services.broker_secrets.believes(broker_id)
            and self._may_be_broker
        ):
            return False
        if broker_id != self.services.node_id:
            session.belongs_to_broker(broker_id)
        return True

    async def is_sent_by(self, broker_id: int) -> bool:
        """Like `comes_from`, also for a broker that has only just registered. Raises: CloseConnection if the
        registration cannot be read, so that the request is sent again."""
        if self.comes_from(broker_id):
            return True
        if self.session.is_broker or not self.is_on_inter_broker_listener:
            return False
        try:
            await self.services.broker_secrets.look_up(broker_id)
        except CoordinationError as error:
            raise CloseConnection(f"whether broker {broker_id} is registered cannot be read: {error}") from error
        return self.comes_from(broker_id)

    def comes_from_some_broker(self) -> bool:
        """Like `comes_from`, for a request in which nothing, or the client id alone, names the broker. If there are
        brokers without a secret, any connection on the inter-broker listener may be one of them."""
        if self.session.is_broker or self.comes_from(broker_of_client_id(self.client_id)):
            return True
        return (
            self.is_on_inter_broker_listener and self.services.broker_secrets.believes_anybody() and self._may_be_broker
        )

    def comes_from_another_broker(self) -> bool:
        """Like `comes_from_some_broker`, but not in this broker's own name, which any client may use if this broker is
        alone."""
        broker_id = broker_of_client_id(self.client_id)
        if self.session.is_broker or (broker_id != self.services.node_id and self.comes_from(broker_id)):
            return True
        return (
            self.is_on_inter_broker_listener and self.services.broker_secrets.believes_another() and self._may_be_broker
        )

    def is_stranger(self) -> bool:
        """Whether the sender is no broker, as `comes_from_some_broker` says, and brokers are known: a broker that is
        alone has no secret, and believes anybody on all its listeners, as Apache Kafka does."""
        services = self.services
        return not (self.comes_from_some_broker() or services.broker_secrets.believes(services.node_id))
