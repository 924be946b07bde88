"""Connections to other brokers: where they lead as metadata changes."""

import asyncio
from typing import Final

import pytest

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.cluster.peers import Peers
from barnabas.broker.network.peer_connection import PeerUnavailable
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.network import OsNetwork
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from tools.waiting import PATIENCE_S

LISTENER: Final = "REPLICATION"


def metadata_of(port: int | None) -> UpdateMetadataRequest:
    """Broker 2 listens for others on `port`, and for clients elsewhere; or it is not alive."""
    endpoints = [
        UpdateMetadataEndpoint(port=1, host="clients", listener="PLAINTEXT"),
        UpdateMetadataEndpoint(port=port or 0, host="127.0.0.1", listener=LISTENER),
    ]
    return UpdateMetadataRequest(live_brokers=[] if port is None else [UpdateMetadataBroker(id=2, endpoints=endpoints)])


class Silent(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.is_gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.is_asked.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone.set()


async def follow_a_broker() -> None:
    metadata, network = MetadataCache(), OsNetwork()
    timers = Timers(ManualClock(), asyncio.get_running_loop())
    peers = Peers(network, metadata, LISTENER, timers, 1, 30_000)
    connection = peers.connection(2, "test")
    assert connection is peers.connection(2, "test")
    assert connection is not peers.connection(2, "other")
    with pytest.raises(PeerUnavailable, match="broker 2 is not alive"):
        await connection.send(AllocateProducerIdsRequest(), 0)

    accepted: asyncio.Queue[Silent] = asyncio.Queue()
    bound = network.bind("127.0.0.1", 0)

    def accept() -> Silent:
        accepted.put_nowait(silent := Silent())
        return silent

    await bound.listen(accept)
    await metadata.update(metadata_of(bound.port))
    assert peers.address(2) == ("127.0.0.1", bound.port)
    answer = connection.send(AllocateProducerIdsRequest(), 0)
    silent = await accepted.get()
    await silent.is_asked.wait()
    await metadata.update(metadata_of(bound.port))
    assert not answer.done()  # it is where it was
    await metadata.update(metadata_of(None))
    with pytest.raises(PeerUnavailable, match="has gone from there"):
        await answer
    await silent.is_gone.wait()

    await metadata.update(metadata_of(bound.port))
    answer = connection.send(AllocateProducerIdsRequest(), 0)
    peers.close()
    with pytest.raises(PeerUnavailable, match="the connection is closed"):
        await answer
    assert not metadata.listeners
    bound.close()
    timers.close()


def test_a_connection_follows_its_broker() -> None:
    asyncio.run(asyncio.wait_for(follow_a_broker(), PATIENCE_S))
