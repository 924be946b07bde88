"""Clients of a whole broker in its own process, whose connections are throttled by the broker's clock."""

from barnabas.broker.api.local import LocalClient, LocalResources
from barnabas.broker.server import Broker
from barnabas.inflight_budget import InflightBudget
from barnabas.threads import OsThreads

LISTENER = "PLAINTEXT"
REQUEST_BYTES_MAX = 100 * 1024 * 1024


def local_client(broker: Broker, client_id: str, principal: str | None = None) -> LocalClient:
    """A client with an id, anonymous or as a principal ("User:alice")."""
    assert broker.dispatcher is not None
    budget = InflightBudget(REQUEST_BYTES_MAX)
    resources = LocalResources(broker.dispatcher, budget, REQUEST_BYTES_MAX, broker.timers, OsThreads())
    client = LocalClient(resources, LISTENER, client_id)
    if principal is not None:
        client.session.principal = principal
    return client


async def configure(broker: Broker, entity_type: str, name: str, **quotas: str) -> None:
    """Set the quotas of an entity below /config, in place of those of before."""
    await broker.configs.change(entity_type, name, lambda _: quotas)
