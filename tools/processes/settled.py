"""Whether the brokers of a cluster, each in its own process, have received and applied their controller's decisions.
They are asked by Kafka's protocol, those of Apache Kafka as well as ours.

Call `wait_settled` after starts, stops, kills, topic creations or elections: a tool gets its response when the
controller's broker has applied a change, and the others follow later. (For clusters inside a test:
`barnabas.testing.contents.settled`.)
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.broker.client.client import BrokerConnection, ClientError, parse_bootstrap_servers
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tools.waiting import PATIENCE_S

ANSWER_S: Final = 10.0
LOOK_INTERVAL_S: Final = 0.02
NO_LEADER: Final = -1


class Partition(NamedTuple):
    """The state of a partition in a broker's metadata."""

    leader: int
    leader_epoch: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


class Telling(NamedTuple):
    """A broker's report of its cluster. `loading` are the error codes of its coordinators, 0 when all have read their
    logs.
    """

    controller: int
    brokers: Mapping[str, int]
    """The brokers' ids by address."""
    partitions: Mapping[tuple[str, int], Partition]
    loading: tuple[int, int]


def wait_settled(addresses: str | Iterable[str], topics: Collection[str] = ()) -> None:
    """Return when the brokers at these addresses (HOST:PORT), all running ones, agree with the controller among them on
    live brokers and leaders, know `topics`, have read the logs of their groups and transactions, and are in sync.

    Raises TimeoutError after `PATIENCE_S`, with the missing parts. Not for a running event loop.
    """
    each = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    asyncio.run(_until_settled(each, topics))


async def _until_settled(addresses: Sequence[str], topics: Collection[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    connections: dict[str, BrokerConnection] = {}
    try:
        while (missing := await _open_end(addresses, topics, connections)) is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all brokers are up to date: {missing} (waited {PATIENCE_S:g} s)")
            await asyncio.sleep(LOOK_INTERVAL_S)
    finally:
        for connection in connections.values():
            await connection.close()


async def _open_end(
    addresses: Sequence[str], topics: Collection[str], connections: dict[str, BrokerConnection]
) -> str | None:
    """The first missing part of one of the brokers; None if there is none."""
    try:
        told = {address: await _told_by(address, connections) for address in addresses}
    except ClientError as error:
        return str(error)
    return unsettled(told, topics)


async def _told_by(address: str, connections: dict[str, BrokerConnection]) -> Telling:
    """Ask a broker. Raises ClientError without a response; the broker gets a new connection next time."""
    connection = connections.get(address)
    if connection is None or not connection.is_open:
        [(host, port)] = parse_bootstrap_servers(address)
        connection = connections[address] = BrokerConnection(host, port, "settled", ANSWER_S)
        await connection.open()
    groups: ListGroupsResponse = await connection.send(ListGroupsRequest())
    transactions: ListTransactionsResponse = await connection.send(ListTransactionsRequest())
    told: MetadataResponse = await connection.send(MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return Telling(
        told.controller_id,
        {f"{broker.host}:{broker.port}": broker.node_id for broker in told.brokers},
        {
            (topic.name or "", part.partition_index): _partition(part)
            for topic in told.topics
            for part in topic.partitions
        },
        (groups.error_code, transactions.error_code),
    )


def _partition(told: Any) -> Partition:
    return Partition(told.leader_id, told.leader_epoch, frozenset(told.replica_nodes), frozenset(told.isr_nodes))


def unsettled(told: Mapping[str, Telling], topics: Collection[str] = ()) -> str | None:
    """The missing parts, by the report of the broker at each address; None if there are none."""
    for address, telling in told.items():
        if set(telling.brokers) != set(told):
            return f"the broker at {address} knows those at {', '.join(sorted(telling.brokers))}"
        if any(telling.loading):
            return f"the coordinators at {address} still read their logs: errors {telling.loading}"
    by_id = {node_id: address for address, node_id in next(iter(told.values())).brokers.items()}
    controllers = {telling.controller for telling in told.values()}
    if len(controllers) != 1 or not controllers <= by_id.keys():
        return f"brokers {sorted(controllers)} are told of as the controller"
    decided = told[by_id[controllers.pop()]].partitions
    if lacking := set(topics) - {topic for topic, _ in decided}:
        return f"the controller does not know {', '.join(sorted(lacking))}"
    for address, telling in told.items():
        if telling.partitions != decided:
            name, index = next(iter(dict(telling.partitions.items() ^ decided.items())))
            return f"the broker at {address} and the controller tell different things of {name}-{index}"
    for (name, index), partition in decided.items():
        lagging = (partition.replicas & by_id.keys()) - partition.in_sync
        if partition.leader != NO_LEADER and (lagging or partition.leader not in by_id):
            return f"{name}-{index}: {partition}"
    return None
