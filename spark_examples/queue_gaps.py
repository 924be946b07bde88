"""Explains the offsets of a queue that have no record, by reading the batches around them.

Consumers hide what this asks for (control batches, aborted records), so it reads with the small Kafka client of
Barnabas, from any broker. Batches keep the offsets that they had when they were written: an offset within a data batch
that holds no record of that offset is a hole, and so is one between two batches. Compaction makes holes; nothing may
make them in a topic that is not compacted.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence

from barnabas.broker.client.client import KafkaClient, check
from barnabas.broker.client.configs import TOPIC, describe_configs
from barnabas.broker.client.consumer import EARLIEST, READ_COMMITTED, Positions
from barnabas.broker.client.security import PLAINTEXT, Security
from barnabas.spark_examples.archive_log import Explained
from barnabas.spark_examples.offsets import Partition, Range
from barnabas.testing.contents.records import CommittedBatches
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from barnabas.wire.record_batch import RecordBatchHeader, iter_headers
from barnabas.wire.records import iter_records

FETCH_BYTES = 8 * 1024 * 1024

Reason = tuple[int, int, str]
"""Offsets from the first one up to, not including, the second, and what became of them."""

MARKER, ABORTED, COMPACTED = "transaction marker", "aborted", "compacted"
HOLE = "not in the queue, though its cleanup.policy is not compact"
LOST, DELETED, UNREADABLE = "lost: the queue has it", "no longer in the queue", "not readable in the queue"


def explain_gaps(
    bootstrap_servers: str, gaps: Mapping[Partition, Sequence[Range]], security: Security = PLAINTEXT
) -> list[Explained]:
    """Every offset of the gaps with its reason, as ranges. Errors: barnabas.broker.client.client.ClientError."""
    return asyncio.run(_explain_all(bootstrap_servers, gaps, security))


async def _explain_all(
    bootstrap_servers: str, gaps: Mapping[Partition, Sequence[Range]], security: Security
) -> list[Explained]:
    async with KafkaClient(bootstrap_servers, security=security) as client:
        positions = Positions(client)
        await positions.refresh({topic for topic, _ in gaps})
        starts = await positions.offsets(list(gaps), EARLIEST)
        compacted = await _compacted(client, {topic for topic, _ in gaps})
        leaders = {name: node for node, names in positions.by_leader(gaps).items() for name in names}
        explained: list[Explained] = []
        for (topic, number), ranges in gaps.items():
            reader = _PartitionReader(client, (topic, number), positions.topic_id(topic), leaders[topic, number])
            hole = COMPACTED if topic in compacted else HOLE
            found = await _reasons(reader, sorted(ranges), starts[topic, number], hole)
            explained += [Explained(topic, number, start, end, reason) for start, end, reason in found]
        return explained


async def _compacted(client: KafkaClient, topics: Collection[str]) -> set[str]:
    """The compacted topics among some topics."""
    described = await describe_configs(client, [(TOPIC, name) for name in sorted(topics)])
    policies = {
        name: (config.value or "").split(",")
        for (_, name), configs in described.items()
        for config in configs
        if config.name == "cleanup.policy"
    }
    return {name for name, policy in policies.items() if "compact" in [each.strip() for each in policy]}


async def _reasons(reader: "_PartitionReader", gaps: Sequence[Range], log_start: int, hole: str) -> list[Reason]:
    """The reason of each offset within the gaps of a partition, as ranges; `hole` is that of those the log skips."""
    found: list[Reason] = []
    position = 0
    for gap_start, end in gaps:
        start = gap_start
        if start < log_start:
            found.append((start, min(end, log_start), DELETED))
            start = min(end, log_start)
        position = max(position, start)
        while position < end:
            answer = await reader.fetch(position)
            pieces = list(_classified(answer, position, gaps, hole)) if answer.records else []
            if not pieces:
                found.append((position, end, UNREADABLE))
                break
            found += pieces
            position = pieces[-1][1]
    return _within(found, gaps)


def _classified(answer: PartitionData, position: int, gaps: Sequence[Range], hole: str) -> Iterator[Reason]:
    """The reasons for the offsets of fetched batches, from `position` on."""
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    is_committed = CommittedBatches(aborted).includes(answer.records)
    for header in iter_headers(answer.records):
        committed = is_committed(header)  # asked about every batch: it keeps account of markers
        if header.next_offset <= position:
            continue
        if header.base_offset > position:
            yield position, header.base_offset, hole
        start = max(position, header.base_offset)
        position = header.next_offset
        if header.is_control:
            yield start, position, MARKER
        elif not committed:
            yield start, position, ABORTED
        elif any(gap_start < position and end > start for gap_start, end in gaps):
            yield from _by_record(answer, header, start, hole)
        else:
            yield start, position, LOST  # nobody asked: `_within` leaves it out


def _by_record(answer: PartitionData, header: RecordBatchHeader, start: int, hole: str) -> Iterator[Reason]:
    offsets = {record.offset for record in iter_records(answer.records, header)}
    for offset in range(start, header.next_offset):
        yield offset, offset + 1, LOST if offset in offsets else hole


def _within(found: Sequence[Reason], gaps: Sequence[Range]) -> list[Reason]:
    """The parts of `found` that lie in gaps, neighbours of one reason together; both are in the order of offsets."""
    cut: list[Reason] = []
    index = 0
    for start, end, reason in sorted(found):
        while index < len(gaps) and gaps[index][1] <= start:
            index += 1
        at = index
        while at < len(gaps) and gaps[at][0] < end:
            piece = (max(start, gaps[at][0]), min(end, gaps[at][1]), reason)
            if cut and cut[-1][1] == piece[0] and cut[-1][2] == reason:
                cut[-1] = (cut[-1][0], piece[1], reason)
            else:
                cut.append(piece)
            at += 1
    return cut


class _PartitionReader:
    """Fetches from one partition."""

    def __init__(self, client: KafkaClient, partition: Partition, topic_id: bytes, leader: int) -> None:
        self._client = client
        self._topic, self._number = partition
        self._topic_id = topic_id
        self._leader = leader

    async def fetch(self, offset: int) -> PartitionData:
        """The batches from the one with `offset` on, committed or aborted. Errors: ClientError."""
        partition = FetchPartition(partition=self._number, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topic = FetchTopic(topic=self._topic, topic_id=self._topic_id, partitions=[partition])
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=READ_COMMITTED, topics=[topic]
        )
        response = await self._client.send(request, self._leader, wait_s=0.5)
        check(response.error_code, "cannot fetch")
        [answer] = response.responses[0].partitions
        check(answer.error_code, f"cannot read {self._topic}-{self._number} at {offset}")
        found: PartitionData = answer
        return found
