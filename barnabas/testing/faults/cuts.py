"""Cuts between brokers of a cluster, and the network of each broker, which applies them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from barnabas.network import BoundSocket, OsNetwork
from barnabas.testing.faults.fault import Fault, Registry, no_effect
from barnabas.testing.interception.selection import Limits, Matcher

P = TypeVar("P", bound=asyncio.BaseProtocol)

Way = tuple[int, int]
"""From a connecting broker to another one."""


class Cut(Fault):
    """Brokers cannot reach others until it is removed; its hits are the connections that it broke, and those that
    waited for its end.
    """

    _meets_requests = False

    def __init__(self, among: Registry, cuts: Cuts, ways: Sequence[Way]) -> None:
        self._ways = ways
        (one, other), is_one_way = ways[0], len(ways) == 1
        name = f"cut {one} {'->' if is_one_way else '<->'} {other}"
        super().__init__(among, name, Matcher(None, {}), Limits(), no_effect)
        self._cuts = cuts

    def _hinders_brokers(self) -> bool:
        return True

    def _begun(self) -> None:
        self._cuts.begin(self)

    def _ended(self) -> None:
        self._cuts.end(self)


class Cuts:
    """The current cuts, and the connections between brokers. Belongs to the cluster's loop."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        """The broker number by listening port."""
        self._cuts: list[Cut] = []
        self._ended = asyncio.Event()
        self._transports: dict[Way, list[asyncio.Transport]] = {}

    def begin(self, cut: Cut) -> None:
        """Break the connections between brokers that are cut off from now on."""
        self._cuts.append(cut)
        for way in cut._ways:
            for transport in self._transports.pop(way, []):
                if not transport.is_closing():
                    transport.abort()
                    cut._counts()

    def end(self, cut: Cut) -> None:
        """Let brokers reach each other again, unless another cut prevents it."""
        self._cuts.remove(cut)
        self._ended.set()
        self._ended = asyncio.Event()

    async def passage(self, way: Way) -> None:
        """Wait until no cut is in this way."""
        met: set[Cut] = set()
        while cuts := {cut for cut in self._cuts if way in cut._ways}:
            for cut in cuts - met:
                cut._counts()
            met |= cuts
            await self._ended.wait()

    def add(self, way: Way, transport: asyncio.Transport) -> None:
        """Register a connection, and break it if its brokers were cut off meanwhile."""
        if any(way in cut._ways for cut in self._cuts):
            transport.abort()
        known = [each for each in self._transports.get(way, []) if not each.is_closing()]
        self._transports[way] = [*known, transport]


class BrokerNetwork(OsNetwork):
    """The machine's network, without the ways that are cut off for a broker."""

    def __init__(self, number: int, cuts: Cuts) -> None:
        self._number = number
        self._cuts = cuts

    def bind(self, host: str | None, port: int, **buffers: Any) -> BoundSocket:
        bound = super().bind(host, port, **buffers)
        self._cuts.ports[bound.port] = self._number
        return bound

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        way = (self._number, self._cuts.ports.get(port, self._number))
        await self._cuts.passage(way)
        transport, protocol = await super().connect(host, port, new_protocol)
        self._cuts.add(way, transport)
        return transport, protocol
