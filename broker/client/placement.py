"""The placement of a cluster's partitions: replicas by broker, leaders, and sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.consumer import TopicPartition
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from barnabas.wire.messages.metadata import MetadataResponse


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A registered broker: its address for clients, and its rack."""

    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition: its replicas, the preferred one first, its ISR, and its leader (-1: none)."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    bytes: int = 0
    """The size of its largest replica."""


@dataclass(frozen=True, slots=True)
class Placement:
    """All brokers and all partitions at one moment."""

    brokers: Mapping[int, BrokerPlace]
    partitions: Mapping[TopicPartition, PartitionPlace]
    replica_bytes: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    """The size of each replica, by topic, partition and broker, as far as brokers report it."""

    problems: tuple[str, ...] = ()
    """Brokers that do not report sizes, and log directories that cannot be read, as text."""

    silent: frozenset[int] = frozenset()
    """The brokers that do not report sizes."""

    def away(self) -> list[int]:
        """Brokers that have replicas, but are not registered."""
        return sorted({each for place in self.partitions.values() for each in place.replicas} - self.brokers.keys())


async def read_placement(client: KafkaClient) -> Placement:
    """Read the metadata of the cluster, and the sizes of logs from each broker. Errors: ClientError."""
    metadata = await client.metadata(None)
    sizes, problems, silent = await _replica_bytes(client, [broker.node_id for broker in metadata.brokers])
    return Placement(
        {
            broker.node_id: BrokerPlace(broker.host, broker.port, broker.rack)
            for broker in sorted(metadata.brokers, key=lambda broker: broker.node_id)
        },
        dict(sorted(_partitions(metadata, sizes))),
        sizes,
        tuple(problems),
        frozenset(silent),
    )


def _partitions(
    metadata: MetadataResponse, sizes: Mapping[tuple[str, int, int], int]
) -> Iterable[tuple[TopicPartition, PartitionPlace]]:
    for topic in metadata.topics:
        name = topic.name or ""
        for part in topic.partitions:
            index = part.partition_index
            largest = max((sizes.get((name, index, broker), 0) for broker in part.replica_nodes), default=0)
            place = PartitionPlace(tuple(part.replica_nodes), tuple(part.isr_nodes), part.leader_id, largest)
            yield (name, index), place


async def _replica_bytes(
    client: KafkaClient, brokers: Iterable[int]
) -> tuple[dict[tuple[str, int, int], int], list[str], list[int]]:
    sizes: dict[tuple[str, int, int], int] = {}
    problems, silent = [], []
    for broker in brokers:
        try:
            response = await client.send(DescribeLogDirsRequest(topics=None), broker)
        except ClientError as error:
            problems.append(f"broker {broker} does not report its sizes: {error}")
            silent.append(broker)
            continue
        for directory in response.results:
            if directory.error_code:
                error_code = ErrorCode.of(directory.error_code)
                problems.append(
                    f"broker {broker} cannot read {directory.log_dir}: {error_code.message} ({error_code.name})"
                )
            for topic in directory.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        sizes[topic.name, part.partition_index, broker] = part.partition_size
    return sizes, problems, silent
