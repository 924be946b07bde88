"""`barnabas topics offsets|sizes|delete-records`: the contents of topics, and their deletion."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion, values
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    ClientError,
    complain,
    end_with,
    print_json,
    print_table,
    with_client,
)
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import EARLIEST, Positions, TopicPartition
from barnabas.broker.client.places import Place, ends, named_partitions, offsets_at
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest

_TIMEOUT_MS = 30_000

TopicPartitions = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC[:P,P...]...",
        autocompletion=completion.topic_partitions,
        help="Topics, or some of their partitions.",
    ),
]


def offsets(
    topics: TopicPartitions,
    from_time: Annotated[
        Place | None,
        values.moment_option("--from-time", help="Show the offset of the first record since then, too"),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the first offset and the end of partitions; between them are records, and gaps of deleted ones.

    [bold]Examples[/bold]

      barnabas topics offsets flights
      barnabas topics offsets flights:0,3 --from-time -1h --json
    """
    wanted = values.topic_partitions(topics, "TOPIC")

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        positions = Positions(client)
        partitions = await named_partitions(positions, wanted)
        first, last = await ends(positions, partitions)
        since, _ = (None, []) if from_time is None else await offsets_at(positions, partitions, from_time)
        return [
            {
                "topic": partition[0],
                "partition": partition[1],
                "earliest": first[partition],
                "latest": last[partition],
                **({} if since is None else {"from_time": since[partition]}),
            }
            for partition in partitions
        ]

    rows = with_client(bootstrap_servers, work)
    if as_json:
        print_json(rows)
        return
    names = ("topic", "partition", "earliest", "latest", *(() if from_time is None else ("from_time",)))
    print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])


def sizes(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", autocompletion=completion.topics, help="All topics if none is named."),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show how many bytes topics take in the log directories of all brokers, replicas included.

    [bold]Examples[/bold]

      barnabas topics sizes
      barnabas topics sizes flights --json | jq '.[0].partitions'
    """
    found = with_client(bootstrap_servers, lambda client: _sizes(client, topics or None))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TOPIC", "REPLICAS", "BYTES", "LARGEST REPLICA"),
        [
            (
                each["topic"],
                len(each["partitions"]),
                each["bytes"],
                max((part["bytes"] for part in each["partitions"]), default=0),
            )
            for each in found
        ],
    )


async def _sizes(client: KafkaClient, names: Collection[str] | None) -> list[dict[str, Any]]:
    if names is not None:
        await Positions(client).refresh(names)
    replicas: dict[str, list[dict[str, Any]]] = {}
    for node_id in client.node_ids():
        response = await client.send(DescribeLogDirsRequest(topics=None), node_id)
        for directory in response.results:
            if directory.error_code:
                error = ErrorCode.of(directory.error_code)
                complain(f"broker {node_id} cannot read {directory.log_dir}: {error.message} ({error.name})")
            for topic in directory.topics:
                if names is None or topic.name in names:
                    replicas.setdefault(topic.name, []).extend(
                        {
                            "partition": partition.partition_index,
                            "broker": node_id,
                            "directory": directory.log_dir,
                            "bytes": partition.partition_size,
                        }
                        for partition in topic.partitions
                    )
    return [
        {
            "topic": name,
            "bytes": sum(part["bytes"] for part in parts),
            "partitions": sorted(parts, key=lambda part: (part["partition"], part["broker"])),
        }
        for name, parts in sorted(replicas.items())
    ]


def delete_records(
    topics: TopicPartitions,
    before: Annotated[
        Place | None,
        values.offset_option(
            "--before",
            help="Delete the records before this offset: a number up to the end, -N to keep N, latest to keep none.",
        ),
    ] = None,
    before_time: Annotated[
        Place | None,
        values.moment_option("--before-time", help="Delete the records before the first one since then"),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest records of partitions.

    [bold]Examples[/bold]

      barnabas topics delete-records flights --before-time -7d
      barnabas topics delete-records flights:0 --before 1000
      barnabas topics delete-records flights --before -100
    """
    wanted = values.topic_partitions(topics, "TOPIC")
    place = before or before_time
    if place is None or (before and before_time):
        raise typer.BadParameter("choose one of --before and --before-time")

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        positions = Positions(client)
        partitions = await named_partitions(positions, wanted)
        old = await positions.offsets(partitions, EARLIEST)
        targets, moved = await offsets_at(positions, partitions, place)
        if beyond := [
            f"{move.topic}-{move.partition} ends at {move.taken}" for move in moved if move.wanted > move.taken
        ]:
            raise ClientError(f"nothing was deleted: {', '.join(beyond)}")
        done = await _delete_records(positions, targets)
        return [
            {"topic": topic, "partition": index, "old_earliest": old[topic, index], **done[topic, index]}
            for topic, index in partitions
        ]

    rows = with_client(bootstrap_servers, work)
    if as_json:
        print_json(rows)
    else:
        names = ("topic", "partition", "old_earliest", "earliest")
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
    end_with(
        [f"cannot delete records of {row['topic']}-{row['partition']}: {row['error']}" for row in rows if row["error"]]
    )


async def _delete_records(
    positions: Positions, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, dict[str, Any]]:
    """The new earliest offset of each partition, or None and an error."""
    done: dict[TopicPartition, dict[str, Any]] = {
        partition: {"earliest": None, "error": ErrorCode.LEADER_NOT_AVAILABLE.message} for partition in before
    }
    for leader, partitions in positions.by_leader(before).items():
        topics: dict[str, DeleteRecordsTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, DeleteRecordsTopic(name=name))
            topic.partitions.append(DeleteRecordsPartition(partition_index=index, offset=before[name, index]))
        request = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=_TIMEOUT_MS)
        try:
            response = await positions.client.send(request, leader, wait_s=_TIMEOUT_MS / 1000)
        except ClientError as failure:
            done |= {partition: {"earliest": None, "error": str(failure)} for partition in partitions}
            continue
        for topic in response.topics:
            for answer in topic.partitions:
                error = ErrorCode.of(answer.error_code)
                done[topic.name, answer.partition_index] = {
                    "earliest": None if error else answer.low_watermark,
                    "error": f"{error.message} ({error.name})" if error else None,
                }
    return done
