"""Clients of a whole broker in its own process, whose connections are throttled by the broker's clock."""

from barnabas.broker.api.local import LocalClient, LocalResources
from barnabas.broker.server import Broker
from barnabas.inflight_budget import InflightBudget
from barnabas.threads import OsThreads
from barnabas.wire import codec, headers
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.records import Record, build_batch

LISTENER = "PLAINTEXT"
TOPIC = "t"
PRODUCE_VERSION = 9
FETCH_VERSION = 12
BATCH = build_batch([Record(0, 1_700_000_000_000, None, b"x" * 1_000, [], 0)])
REQUEST_BYTES_MAX = 100 * 1024 * 1024


def local_client(broker: Broker, client_id: str, principal: str | None = None) -> LocalClient:
    """A client with an id, anonymous or as a principal ("User:alice")."""
    assert broker.dispatcher is not None
    budget = InflightBudget(REQUEST_BYTES_MAX)
    resources = LocalResources(broker.dispatcher, budget, REQUEST_BYTES_MAX, broker.timers, OsThreads())
    client = LocalClient(resources, LISTENER, client_id)
    if principal is not None:
        client.session.principal = principal
    return client


async def configure(broker: Broker, entity_type: str, name: str, **quotas: str) -> None:
    """Set the quotas of an entity below /config, in place of those of before."""
    await broker.configs.change(entity_type, name, lambda _: quotas)


async def create(client: LocalClient, *topics: tuple[str, int], version: int = 7) -> CreateTopicsResponse:
    """Create topics with so many partitions."""
    asked = [CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics]
    return await client.ask(CreateTopicsRequest(topics=asked, timeout_ms=30_000), version, CreateTopicsResponse)


def produce_request(count: int = 1) -> ProduceRequest:
    """A request that appends `BATCH` so many times."""
    data = PartitionProduceData(index=0, records=BATCH)
    topics = [TopicProduceData(name=TOPIC, partition_data=[data]) for _ in range(count)]
    return ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)


def produce_bytes(client_id: str) -> int:
    """The size of such a request with one batch."""
    request = produce_request()
    header = headers.request_header(request.API_KEY, PRODUCE_VERSION, 0, client_id)
    return len(header) + len(codec.encode(request, PRODUCE_VERSION))


async def produce(client: LocalClient, count: int = 1) -> int:
    """Append batches with one request; returns the throttle time."""
    response = await client.ask(produce_request(count), PRODUCE_VERSION, ProduceResponse)
    assert {p.error_code for t in response.responses for p in t.partition_responses} == {ErrorCode.NONE}
    return response.throttle_time_ms


def fetch_request(offset: int = 0, *, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )


def fetched_bytes(response: FetchResponse) -> int:
    return sum(len(partition.records or b"") for topic in response.responses for partition in topic.partitions)
