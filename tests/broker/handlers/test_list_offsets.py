"""ListOffsets for the largest timestamp, where the record that has it is deleted but the rest of its batch is not."""

from barnabas.testing import Broker
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import Record, build_batch
from tools.attack.hostile import ask, connect, produce

LARGEST = -3
NOW_MS = 1_700_000_000_000


def test_a_search_ends_if_the_largest_time_is_below_log_start() -> None:
    """It was repeated for ever, as if the log start had moved meanwhile."""
    with Broker() as broker, connect(broker.bootstrap_servers) as connection:
        broker.create_topic("t")
        batch = build_batch([Record(offset, NOW_MS - offset, None, b"v") for offset in range(3)])
        assert (
            ask(connection, produce("t", batch), 9, ProduceResponse).responses[0].partition_responses[0].error_code == 0
        )
        partition = DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsTopic(name="t", partitions=[partition])]
        deleted = ask(connection, DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2, DeleteRecordsResponse)
        assert deleted.topics[0].partitions[0].low_watermark == 1
        wanted = ListOffsetsPartition(partition_index=0, timestamp=LARGEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
        answer = ask(connection, request, 7, ListOffsetsResponse).topics[0].partitions[0]
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, NOW_MS)
