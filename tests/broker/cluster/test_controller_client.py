"""A broker's requests to the controller, while the controller moves from broker to broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.cluster.controller_client import FIRST_BACKOFF_MS, ControllerClient
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.network.peer_connection import PeerUnavailable
from barnabas.clock import ManualClock
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.messages.alter_partition import AlterPartitionRequest
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.create_topics import CreateTopicsRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.support.manual_timers import ManualTimers
from tools.waiting import PATIENCE_S

NOT_CONTROLLER = AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
GRANTED = AllocateProducerIdsResponse(producer_id_start=7, producer_id_len=1)


class Cluster:
    """Broker 1 asks; `answers` are those of brokers 2 and 3, and of its own controller while that is active."""

    def __init__(self) -> None:
        self.is_active = False
        self.asked: list[int] = []
        self.purposes: list[str] = []
        self.answers: dict[int, AllocateProducerIdsResponse | Exception] = {}
        self.metadata = MetadataCache()
        self.clock, self.timers = ManualClock(), ManualTimers()
        peers: Any = self
        self.client = ControllerClient(
            self,
            {AllocateProducerIdsRequest.API_KEY: lambda _request: self.answer(1)},
            self.metadata,
            peers,
            self.clock,
            self.timers,
        )

    async def answer(self, broker_id: int) -> AllocateProducerIdsResponse:
        self.asked.append(broker_id)
        answer = self.answers[broker_id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def connection(self, broker_id: int, purpose: str) -> Any:
        self.purposes.append(purpose)

        class Connection:
            @staticmethod
            async def send(_request: object, _version: int, _timeout_ms: int) -> AllocateProducerIdsResponse:
                return await self.answer(broker_id)

        return Connection()

    async def elected(self, controller_id: int) -> None:
        await self.metadata.update(UpdateMetadataRequest(controller_id=controller_id))

    async def ask_until(self, after_pause: Callable[[int], Any]) -> AllocateProducerIdsResponse:
        """Ask for at most 10 s; what happens in each pause, by its number."""
        asking = asyncio.ensure_future(self.client.send(AllocateProducerIdsRequest(), 0, 10_000))
        pauses = 0
        while not asking.done():
            await asyncio.sleep(0)
            if self.timers.waiting and not asking.done():
                pauses += 1
                outcome = after_pause(pauses)
                if outcome is not None:
                    await outcome
                self.clock.advance(self.timers.waiting[0].delay_ms)
                self.timers.fire()
        response: AllocateProducerIdsResponse = await asking
        return response


async def the_controller_moves() -> None:
    cluster = Cluster()
    cluster.answers = {1: GRANTED, 2: PeerUnavailable("broker 2 is not alive"), 3: NOT_CONTROLLER}

    def meanwhile(pause: int) -> Any:
        if pause in (1, 2):
            return cluster.elected(pause + 1)
        cluster.is_active = True
        return None

    assert await cluster.ask_until(meanwhile) is GRANTED
    assert cluster.asked == [2, 3, 1]


async def nobody_answers() -> None:
    cluster = Cluster()
    await cluster.elected(2)
    cluster.answers = {2: PeerUnavailable("broker 2 is not alive")}
    with pytest.raises(ApiError, match="broker 2 is not alive") as caught:
        await cluster.ask_until(lambda _pause: None)
    assert caught.value.error is ErrorCode.REQUEST_TIMED_OUT
    assert 10 <= len(cluster.asked) <= 10_000 // FIRST_BACKOFF_MS


async def each_api_has_a_connection() -> None:
    """One that waits holds up only its like: requests of a connection are served one after the other."""
    cluster = Cluster()
    await cluster.elected(2)
    cluster.answers = {2: GRANTED}
    requests = [
        (AllocateProducerIdsRequest(), 0),
        (AlterPartitionRequest(), 3),
        (ControlledShutdownRequest(), 3),
        (CreateTopicsRequest(), 7),
    ]
    for request, version in requests * 2:
        await cluster.client.send(request, version, 10_000)
    assert cluster.purposes[:4] == cluster.purposes[4:]
    assert len(set(cluster.purposes)) == 4


@pytest.mark.parametrize("story", [the_controller_moves, nobody_answers, each_api_has_a_connection])
def test_the_controller_is_looked_for(story: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
