"""The controller's channel to the broker in its own process: requests are passed without a socket."""

from barnabas.broker.cluster.controller_commands import ControllerCommands, Request, Response
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest


class LocalChannel:
    """A BrokerChannel (controller/channel.py) to one broker: the one in its own process, which carries out requests by
    `commands`."""

    def __init__(self, node_id: int, commands: ControllerCommands) -> None:
        self._node_id = node_id
        self._commands = commands

    def reaches(self, broker_id: int) -> bool:
        return broker_id == self._node_id

    async def send(self, broker_id: int, request: Request) -> Response:
        assert broker_id == self._node_id, f"broker {broker_id} is not this one"
        if isinstance(request, LeaderAndIsrRequest):
            return await self._commands.leader_and_isr(request)
        if isinstance(request, StopReplicaRequest):
            return await self._commands.stop_replica(request)
        return await self._commands.update_metadata(request)
