"""The leaders of partitions as each broker of a cluster knows them. Our own small client asks each over a connection of
its own, because other clients choose the broker themselves.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from barnabas.broker.client.client import BrokerConnection, ClientError, parse_bootstrap_servers
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

TIMEOUT_S = 300
LOOK_INTERVAL_S = 0.05


class Partition(NamedTuple):
    """One partition, as a broker tells of it."""

    topic: str
    number: int
    leader: int
    in_sync: int
    epoch: int
    """The number of elections so far."""


class Telling(NamedTuple):
    """A broker's metadata: partitions, and the brokers that it knows of."""

    partitions: list[Partition]
    brokers: set[int]


class Leaders:
    """Asks brokers, by address (HOST:PORT), for their metadata; a context manager, for one thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._connections: dict[str, BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            self._runner.run(connection.close())
        self._runner.close()

    def told_by(self, address: str) -> Telling | None:
        """A broker's metadata of all topics; None if it does not answer."""
        try:
            return self._runner.run(self._ask(address))
        except ClientError:
            self._connections.pop(address, None)
            return None

    async def _ask(self, address: str) -> Telling:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            [(host, port)] = parse_bootstrap_servers(address)
            connection = self._connections[address] = BrokerConnection(host, port, "benchmark", TIMEOUT_S)
            await connection.open()
        response: MetadataResponse = await connection.send(MetadataRequest(topics=None))
        return Telling(
            [
                Partition(
                    topic.name or "", part.partition_index, part.leader_id, len(part.isr_nodes), part.leader_epoch
                )
                for topic in response.topics
                for part in topic.partitions
            ],
            {broker.node_id for broker in response.brokers},
        )

    def wait_for(self, addresses: Iterable[str], is_right: Callable[[Telling], bool], what: str) -> float:
        """Wait until each of the brokers tells what is right; the time of the last one, by `time.monotonic`.

        Raises RuntimeError when that takes too long.
        """
        deadline = time.monotonic() + TIMEOUT_S
        for address in addresses:
            while (told := self.told_by(address)) is None or not is_right(told):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{what}: not at {address} after {TIMEOUT_S} s")
                time.sleep(LOOK_INTERVAL_S)
        return time.monotonic()

    def wait_until_led(self, addresses: Iterable[str], count: int, gone: Collection[int] = ()) -> float:
        """Wait until so many partitions are led by brokers that are not `gone`, in every broker's metadata."""
        return self.wait_for(
            addresses,
            lambda told: sum(each.leader >= 0 and each.leader not in gone for each in told.partitions) >= count,
            f"{count} partitions that are led",
        )

    def wait_in_sync(self, addresses: Iterable[str], count: int, replicas: int) -> float:
        """Wait until so many partitions have all their replicas in sync, in every broker's metadata."""
        return self.wait_for(
            addresses,
            lambda told: sum(each.in_sync >= replicas for each in told.partitions) >= count,
            f"{count} partitions in sync",
        )


class WithoutLeader:
    """The time in which a partition had no leader, for `with`: a thread asks the brokers in turn and notes the leaders.

    A partition has a leader while the metadata name one that lives, according to `living`.
    """

    def __init__(self, addresses: Sequence[str], count: int, living: Callable[[], Collection[int]]) -> None:
        self._addresses = addresses
        self._count = count
        self._living = living
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._since: dict[tuple[str, int], float] = {}
        self.longest_s = 0.0
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with Leaders() as leaders:
            for told in self._told(leaders):
                self._note(told, time.monotonic())
                self.looks += 1

    def _told(self, leaders: Leaders) -> Iterator[Telling]:
        while not self._over.wait(LOOK_INTERVAL_S):
            for address in self._addresses:
                with contextlib.suppress(OSError):
                    told = leaders.told_by(address)
                    if told is not None and len(told.partitions) >= self._count:
                        yield told

    def _note(self, told: Telling, now_s: float) -> None:
        living = self._living()
        for each in told.partitions:
            if each.leader in living:
                since_s = self._since.pop((each.topic, each.number), now_s)
                self.longest_s = max(self.longest_s, now_s - since_s)
            else:
                self._since.setdefault((each.topic, each.number), now_s)
