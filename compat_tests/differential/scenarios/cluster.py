"""ApiVersions, Metadata, DescribeCluster, FindCoordinator, DescribeLogDirs, InitProducerId; broken frames."""

from barnabas.broker.handlers import load_handler, served_apis
from barnabas.wire import codec, headers, messages
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import ProduceRequest
from compat_tests.differential.run import Run, Side
from compat_tests.differential.values import UNKNOWN_TOPIC_ID
from compat_tests.semantics.client import batch_of, produce_request

BAD_NAMES = ("", ".", "..", "a b", "a/b", "ü", "x" * 249, "x" * 250, "a\x00b", "_._", "a:b")
API_VERSIONS, METADATA, PRODUCE, DESCRIBE_LOG_DIRS = 18, 3, 0, 35


def api_versions(run: Run) -> None:
    for software, release in (
        ("", ""), ("a", "1"), ("a b", "1"), ("-a", "1"), ("a-", "1"), ("a.b-c", "1.0-rc.1"), ("a", ""), ("", "1"),
        ("ü", "1"), ("x" * 1000, "1"), ("a", "1 2"), ("1", ".1"), ("a_b", "1"),
    ):  # fmt: skip
        run.sweep(ApiVersionsRequest(client_software_name=software, client_software_version=release))
    for version in (5, 6, 100, 32767, -1):
        run.ask_raw(API_VERSIONS, version, b"", answer_version=0)


def metadata_all(run: Run) -> None:
    run.create_topic("a")
    run.create_topic("b", partitions=3)
    run.sweep(
        MetadataRequest(topics=None),
        MetadataRequest(topics=[]),
        MetadataRequest(topics=None, allow_auto_topic_creation=False),
        MetadataRequest(topics=[], include_cluster_authorized_operations=True),
        MetadataRequest(topics=None, include_topic_authorized_operations=True),
    )


def metadata_named(run: Run) -> None:
    one, three = run.create_topic("a"), run.create_topic("b", partitions=3)

    def asking(*names: str | None, **options: bool) -> MetadataRequest:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False, **options)

    run.sweep(
        asking(one),
        asking(three, one),
        asking(one, one),
        asking(one, include_topic_authorized_operations=True),
        asking(one, "no-such", include_topic_authorized_operations=True),
        asking("no-such"),
        asking("no-such", one, "a b"),
        asking("__cluster_metadata"),
        asking(None),
        asking(None, one),
        versions=range(4, 14),
    )
    for name in BAD_NAMES:
        run.sweep(asking(name), versions=(4, 8, 12))
    for version in range(4):
        run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=one), MetadataRequestTopic(name=three)]), version)


def metadata_by_id(run: Run) -> None:
    one, three = run.create_topic("a"), run.create_topic("b", partitions=3)

    def asking(*topics: str | bytes, mixed: str | None = None) -> object:
        def build(side: Side) -> MetadataRequest:
            ids = [side.topic_id(topic) if isinstance(topic, str) else topic for topic in topics]
            asked = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
            if mixed is not None:
                asked.append(MetadataRequestTopic(name=mixed))
            return MetadataRequest(topics=asked, allow_auto_topic_creation=False)

        return build

    for build in (
        asking(one),
        asking(one, three),
        asking(UNKNOWN_TOPIC_ID),
        asking(one, UNKNOWN_TOPIC_ID),
        asking(one, one),
        asking(bytes(16)),
        asking(one, mixed=three),
        asking(one, mixed="no-such"),
        asking(UNKNOWN_TOPIC_ID, mixed=one),
    ):
        run.sweep(build, versions=range(10, 14))  # type: ignore[arg-type]

    def both(side: Side) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name=one, topic_id=side.topic_id(three))])

    run.sweep(both, versions=(12, 13))


def metadata_auto_creation(run: Run) -> None:
    for version in (0, 1, 3, 4, 8, 9, 10, 12, 13):
        name = run.fresh(f"v{version}")
        run.kafka.last = run.barnabas.last = None
        run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), version)
        run.wait_served(name, 2)
        run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), version)
    for name in ("a b", "", "."):
        run.sweep(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), versions=(1, 7, 13))
    clashing = run.create_topic("dotted.name")
    run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=clashing.replace(".", "_"))]), 9)


def describe_cluster(run: Run) -> None:
    for operations in (False, True):
        for endpoint in (1, 0, 2, 3, -1, 127, -128):
            run.sweep(DescribeClusterRequest(include_cluster_authorized_operations=operations, endpoint_type=endpoint))


def find_coordinator(run: Run) -> None:
    for key in ("g", "", "ü", "x" * 300, " "):
        for key_type in (0, 1, 2, 3, -1, 127):
            run.sweep(FindCoordinatorRequest(key=key, key_type=key_type), versions=range(4))
            run.sweep(FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), versions=(4, 5, 6))
    for keys in ([], ["a", "b"], ["a", "a"], ["", "a"]):
        run.sweep(FindCoordinatorRequest(coordinator_keys=keys, key_type=0), versions=(4, 5, 6))
        run.sweep(FindCoordinatorRequest(coordinator_keys=keys, key_type=9), versions=(4, 5, 6))
    for key in ("g:AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA:0", "g:AAAAAAAAAAAAAAAAAAAAAA:0", "g:nonsense:0"):
        run.sweep(FindCoordinatorRequest(coordinator_keys=[key], key_type=2), versions=(4, 5, 6))


def describe_log_dirs(run: Run) -> None:
    one, three = run.create_topic("a"), run.create_topic("b", partitions=3)
    run.ask(produce_request(three, batch_of([b"x"] * 10), partition=1), 9)

    def asking(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=topic, partitions=partitions) for topic, partitions in topics]
        )

    run.sweep(
        asking((one, [0])),
        asking((three, [0, 1, 2]), (one, [0])),
        asking((three, [2, 1])),
        asking((three, [7])),
        asking((three, [-1])),
        asking((three, [])),
        asking(("no-such", [0])),
        asking((one, [0]), ("a b", [0])),
        asking((one, [0, 0])),
        asking(),
    )


def describe_topic_partitions(run: Run) -> None:
    one, three, four = run.create_topic("a"), run.create_topic("b", partitions=3), run.create_topic("c", partitions=4)

    def asking(*names: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else RequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    run.sweep(asking(one), asking(three, one), asking(one, one), asking(one, "no-such"), asking("no-such"))
    run.sweep(asking("no-such", "zzz", four, "a b"), asking("__cluster_metadata", one), asking("", cursor=("", 0)))
    for name in BAD_NAMES:
        run.sweep(asking(name, one))
    for limit in (1, 2, 3, 4, 5, 7, 8, 9, 0, -1, -(2**31), 2**31 - 1):
        run.sweep(asking(one, three, four, limit=limit), asking(one, "no-such", three, "zzz", limit=limit))
        run.sweep(asking(three, cursor=(three, 1), limit=limit), asking(three, four, cursor=(three, 2), limit=limit))
    for partition in (0, 1, 2, 3, 4, 100, -1, -(2**31), 2**31 - 2000):
        run.sweep(asking(one, three, cursor=(three, partition)), asking(three, one, cursor=(one, partition)))
        run.sweep(asking(three, cursor=(one, partition)), asking(one, "no-such", cursor=("no-such", partition)))
        run.sweep(asking(one, one, cursor=("zzz", partition)), asking(cursor=("zzz", partition)))
    # All topics: those of the scenarios before have names that come before these, but the internal ones.
    run.sweep(asking(cursor=(one, 0), limit=8), asking(cursor=(one, -1)), asking(cursor=(f"{one}!", 5), limit=7))
    run.sweep(
        asking(cursor=(three, 1), limit=6), asking(cursor=(three, 3), limit=4), asking(cursor=(three, 1), limit=1)
    )


def every_topic_in_pages(run: Run) -> None:
    """Cursors that each side gave, over all topics there are."""
    run.create_topic("a", partitions=3)
    run.create_topic("b")
    for limit in (1, 2, 2000):
        cursors: list[RequestCursor | None] = [None, None]

        def build(side: Side, limit: int = limit, cursors: list[RequestCursor | None] = cursors) -> object:
            return DescribeTopicPartitionsRequest(response_partition_limit=limit, cursor=cursors[run.sides.index(side)])

        for _ in range(20):
            answers = run.ask(build, 0)  # type: ignore[arg-type]
            nexts = [answer.next_cursor for answer in answers]
            if nexts == [None, None]:
                break
            cursors[:] = [
                RequestCursor(topic_name=each.topic_name, partition_index=each.partition_index) for each in nexts
            ]


def list_config_resources(run: Run) -> None:
    run.create_topic("a")
    run.create_topic("b", partitions=3)
    types = (2, 4, 8, 16, 32)
    run.sweep(ListConfigResourcesRequest(), *(ListConfigResourcesRequest(resource_types=[each]) for each in types))
    for several in ([2, 2], [4, 8], [8, 4, 2], [16, 32], list(types), [0], [1], [3], [64], [-1], [-128], [127], [2, 3]):
        run.sweep(ListConfigResourcesRequest(resource_types=several), versions=(1,))


def init_producer_id(run: Run) -> None:
    for transactional_id in (None, ""):
        for timeout_ms in (60_000, 0, -1, 2**31 - 1):
            run.sweep(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms))
    for producer_id, epoch in ((5, 0), (5, -1), (-1, 5), (5, 32767), (-2, -2), (0, 0)):
        run.sweep(
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=1000, producer_id=producer_id, producer_epoch=epoch
            ),
            versions=(3, 4, 5),
        )


def transactions(run: Run) -> None:
    run.sweep(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000))


def versions_that_do_not_exist(run: Run) -> None:
    """One below and some above what both serve: the connection is closed."""
    for key in served_apis():
        if key == API_VERSIONS:
            continue
        highest = messages.api(key).request_class.VALID_VERSIONS[1]
        for version in (highest + 1, 99, -1, 32767):
            run.ask_raw(key, version, bytes(40), answer_version=load_handler(key).max_version)


def keys_that_do_not_exist(run: Run) -> None:
    for key in (-1, 94, 200, 9999, 32767):
        header = key.to_bytes(2, signed=True) + bytes(2) + bytes(4) + b"\xff\xff"
        run.ask_frame(header, METADATA, 0)
    for key in (4, 5, 6, 7, 56, 67):  # between brokers, long ago or on another listener
        run.ask_frame(headers.request_header(key, 0, 1, "x") + bytes(30), METADATA, 0)


def broken_frames(run: Run) -> None:
    """Frames that end early, start wrongly or contradict themselves."""
    for frame in (b"", b"\x00", bytes(3), bytes(7), b"\x00\x12\x00\x00\x00\x00\x00\x01", b"\xff" * 20):
        run.ask_frame(frame, API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("0012000000000001ffff"), API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("00120000000000010000"), API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("00120000000000010005") + b"abc", API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("0012000000000001fffe"), API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("00120000000000010001ff"), API_VERSIONS, 0)
    run.ask_frame(bytes.fromhex("0003000c00000001ffff") + b"\x05" + b"\x00" * 5, METADATA, 12)


def broken_bodies(run: Run) -> None:
    """Each API's smallest and largest version: no body, a body cut short, absurd lengths, bytes behind the end."""
    for key in served_apis():
        handler = load_handler(key)
        request_class = messages.api(key).request_class
        if key in (PRODUCE, API_VERSIONS, DESCRIBE_LOG_DIRS):
            continue  # sizes of all topics: what was deleted goes at any time
        for version in {handler.min_version, handler.max_version}:
            body = codec.encode(request_class(), version)
            for broken in (b"", body[:-1], b"\xff" * 12, b"\x7f" * 40, body[: len(body) // 2]):
                if broken != body:
                    run.ask_raw(key, version, broken)
    for version in (1, 4):
        body = codec.encode(DescribeLogDirsRequest(topics=[]), version)
        for broken in (b"", body[:-1], b"\x7f" * 40):
            run.ask_raw(DESCRIBE_LOG_DIRS, version, broken)
    for version in (3, 9):
        body = codec.encode(ProduceRequest(acks=1, timeout_ms=100), version)
        for broken in (b"", body[:-1], b"\xff" * 12, b"\x7f" * 40):
            run.ask_raw(PRODUCE, version, broken)


def bodies_with_more(run: Run) -> None:
    """Bytes behind the end, and tagged fields nobody knows."""
    for version in (1, 7, 9, 12):
        body = codec.encode(MetadataRequest(topics=[]), version)
        run.ask_raw(METADATA, version, body + b"\x00\x01\x02")
    body = codec.encode(MetadataRequest(topics=[]), 12)
    run.ask_raw(METADATA, 12, body[:-1] + b"\x01\x63\x03abc")
    run.ask_raw(METADATA, 12, body[:-1] + b"\x02\x63\x03abc\x62\x00")
    run.ask_raw(METADATA, 12, body[:-1] + b"\x02\x63\x03abc\x63\x00")
    run.ask_raw(METADATA, 12, body[:-1] + b"\x01\x63\x7fabc")
    for version in (0, 2, 3, 4):
        run.ask_raw(API_VERSIONS, version, codec.encode(ApiVersionsRequest(), version) + b"\x00\x00")


FIRST = (metadata_all, list_config_resources, every_topic_in_pages)
"""These ask for all topics, of which both have the same at the beginning."""
LAST = (
    bodies_with_more,
    broken_frames,
    broken_bodies,
    transactions,
    find_coordinator,
)
"""These make Kafka create topics of its own."""
SCENARIOS = (
    api_versions,
    metadata_named,
    metadata_by_id,
    metadata_auto_creation,
    describe_cluster,
    describe_log_dirs,
    describe_topic_partitions,
    init_producer_id,
    versions_that_do_not_exist,
    keys_that_do_not_exist,
)
