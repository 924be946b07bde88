"""DescribeLogDirs (key 35): the partitions in each log directory, with their sizes (KIP-113).   Versions 1-5.

Behaviour: null topics request every partition. Sizes are bytes of segments; `offset_lag` is how far the log end is
behind the high watermark (a follower's, or 0).
Errors per directory: KAFKA_STORAGE_ERROR.
Authorization: Describe on Cluster: CLUSTER_AUTHORIZATION_FAILED (before version 3 an empty response).
Versions: 2 flexible; 3 top-level error; 4 total and usable bytes (KIP-827); 5 whether a directory is cordoned, which
none is: `cordoned.log.dirs` (KIP-1066) has no effect here.
"""

from collections.abc import Callable, Iterable

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.replication.partition import Partition
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    if not may_on_cluster(context, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    logs = context.services.log_manager
    wanted = _wanted(request)
    by_directory: dict[str, list[Partition]] = {str(directory): [] for directory in logs.directories}
    for partition in context.services.replicas.partitions():
        if wanted(partition):
            by_directory[partition.log.directory.rpartition("/")[0]].append(partition)
    response = DescribeLogDirsResponse()
    for directory, partitions in by_directory.items():
        result = DescribeLogDirsResult(log_dir=directory, topics=_topics(partitions))
        try:
            result.total_bytes, result.usable_bytes = await logs.threads.call(logs.space, directory)
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        response.results.append(result)
    # One result per directory: clients keep only one.
    for path in logs.missing_directories.keys() - by_directory.keys():
        response.results.append(DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR))
    return response


def _wanted(request: DescribeLogDirsRequest) -> Callable[[Partition], bool]:
    if request.topics is None:
        return lambda partition: True
    asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return lambda partition: (partition.topic, partition.index) in asked


def _topics(partitions: Iterable[Partition]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in partitions:
        topic = topics.setdefault(partition.topic, DescribeLogDirsTopic(name=partition.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_in_bytes,
                offset_lag=max(0, partition.log.high_watermark - partition.log.log_end_offset),
            )
        )
    return list(topics.values())


HANDLER: Handler[DescribeLogDirsRequest, DescribeLogDirsResponse] = Handler(
    key=35, min_version=1, max_version=5, handle=handle, has_large_replies=True
)
