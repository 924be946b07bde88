"""The controller's channel to all brokers of its cluster: to its own without a socket, to others over their
inter-broker listener."""

from collections.abc import Callable
from typing import Any

from barnabas.broker.cluster.controller_commands import Request
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.peers import Peers
from barnabas.controller.requests import VERSIONS

Address = Callable[[int], tuple[str, int] | None]
"""The address of a broker, by the registration that the controller knows; None if that is gone, or has no address."""


class ClusterChannel:
    """A BrokerChannel (controller/channel.py) to several brokers."""

    def __init__(self, node_id: int, local: LocalChannel, peers: Callable[[], Peers], address: Address) -> None:
        self._node_id = node_id
        self._local = local
        self._peers = peers
        self._address = address

    def reaches(self, _broker_id: int) -> bool:
        return True

    async def send(self, broker_id: int, request: Request) -> Any:
        if broker_id == self._node_id:
            return await self._local.send(broker_id, request)
        connection = self._peers().connection(broker_id, "controller", lambda: self._address(broker_id))
        connection.follow_address()
        return await connection.send(request, VERSIONS[type(request)])
