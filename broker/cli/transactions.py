"""`barnabas transactions`: list, describe, find-hanging, abort."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    ClientError,
    Outcome,
    end_with,
    print_json,
    print_table,
    report,
    say,
    with_client,
)
from barnabas.broker.client.client import TRANSACTION_COORDINATOR, KafkaClient, ResponseError, check
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

app = Application(help="Show transactions, and end those that hang.")

DEFAULT_MAX_TIMEOUT_MS = 900_000
"""Kafka's `transaction.max.timeout.ms`: no transaction that its coordinator knows is open for longer."""

NOBODY = -1

TransactionalIds = Annotated[
    list[str],
    typer.Argument(
        metavar="TRANSACTIONAL_ID...", autocompletion=completion.transactional_ids, help="Transactional ids."
    ),
]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[TransactionState] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only those in this state; repeatable: {', '.join(each.value for each in TransactionState)}.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids of all brokers.

    [bold]Examples[/bold]

      barnabas transactions list
      barnabas transactions list --state Ongoing --json
    """

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        return await _list(client, ListTransactionsRequest(state_filters=[each.value for each in state or []]))

    listed = with_client(bootstrap_servers, work)
    if as_json:
        print_json(listed)
        return
    print_table(
        ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"),
        [(row["transactional_id"], row["coordinator"], row["producer_id"], row["state"]) for row in listed],
    )


async def _list(client: KafkaClient, request: ListTransactionsRequest) -> list[dict[str, Any]]:
    listed = []
    for node_id in client.node_ids():
        response = await client.send(request, node_id)
        check(response.error_code, f"cannot list the transactions of broker {node_id}")
        listed += [
            {
                "transactional_id": found.transactional_id,
                "coordinator": node_id,
                "producer_id": found.producer_id,
                "state": found.transaction_state,
            }
            for found in response.transaction_states
        ]
    return sorted(listed, key=lambda row: row["transactional_id"])


@app.command("describe")
def describe(
    transactional_ids: TransactionalIds,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show state, producer and partitions of transactions.

    [bold]Example[/bold]

      barnabas transactions describe loader-1
    """

    failures: list[str] = []

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        described = []
        for transactional_id in transactional_ids:
            try:
                described.append(await _describe(client, transactional_id))
            except ResponseError as error:
                failures.append(str(error))
        return described

    described = with_client(bootstrap_servers, work)
    if as_json:
        print_json(described)
    elif described:
        _print_described(described)
    end_with(failures)


def _print_described(described: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "EPOCH", "STATE", "TIMEOUT MS", "SINCE", "PARTITIONS"),
        [
            (
                row["transactional_id"],
                row["coordinator"],
                row["producer_id"],
                row["producer_epoch"],
                row["state"],
                row["timeout_ms"],
                _time_text(row["start_ms"]),
                ",".join(f"{each['topic']}-{each['partition']}" for each in row["partitions"]),
            )
            for row in described
        ],
    )


async def _describe(client: KafkaClient, transactional_id: str) -> dict[str, Any]:
    node_id = await client.coordinator(transactional_id, TRANSACTION_COORDINATOR)
    response = await client.send(DescribeTransactionsRequest(transactional_ids=[transactional_id]), node_id)
    (found,) = response.transaction_states
    check(found.error_code, f"cannot describe transactional id {transactional_id}")
    return {
        "transactional_id": transactional_id,
        "coordinator": node_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": found.transaction_timeout_ms,
        "start_ms": found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
        "partitions": [
            {"topic": topic.topic, "partition": index} for topic in found.topics for index in topic.partitions
        ],
    }


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=completion.topics, help="Only this topic."),
    ] = None,
    max_timeout_ms: Annotated[
        int,
        typer.Option("--max-timeout-ms", metavar="MS", help="The cluster's transaction.max.timeout.ms."),
    ] = DEFAULT_MAX_TIMEOUT_MS,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open in a partition, but that no coordinator will ever end.

    Readers of committed data do not get past them.

    [bold]Example[/bold]

      barnabas transactions find-hanging --topic flights
    """

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        before_ms = time.time_ns() // 1_000_000 - max_timeout_ms
        candidates = await _open_transactions(client, topic)
        old = [each for each in candidates if each["last_timestamp_ms"] <= before_ms]
        return [each for each in old if await _owner(client, each) is None]

    hanging = with_client(bootstrap_servers, work)
    if as_json:
        print_json(hanging)
        return
    if not hanging:
        say("no transaction hangs")
        return
    print_table(
        ("TOPIC", "PARTITION", "START OFFSET", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "LAST WRITE"),
        [
            (
                row["topic"],
                row["partition"],
                row["start_offset"],
                row["producer_id"],
                row["producer_epoch"],
                row["coordinator_epoch"],
                _time_text(row["last_timestamp_ms"]),
            )
            for row in hanging
        ],
    )


async def _open_transactions(client: KafkaClient, topic: str | None) -> list[dict[str, Any]]:
    """Every open transaction in every partition."""
    metadata = await client.metadata(None if topic is None else [topic])
    by_leader: dict[int, list[TopicRequest]] = {}
    for found in metadata.topics:
        check(found.error_code, f"cannot look at topic {found.name}")
        for partition in found.partitions:
            if partition.leader_id != NOBODY:
                asked = TopicRequest(name=found.name or "", partition_indexes=[partition.partition_index])
                by_leader.setdefault(partition.leader_id, []).append(asked)
    transactions = []
    for leader, topics in by_leader.items():
        response = await client.send(DescribeProducersRequest(topics=topics), leader)
        for answered in response.topics:
            for part in answered.partitions:
                check(part.error_code, f"cannot look at {answered.name}-{part.partition_index}", part.error_message)
                transactions += [
                    {
                        "topic": answered.name,
                        "partition": part.partition_index,
                        "start_offset": producer.current_txn_start_offset,
                        "producer_id": producer.producer_id,
                        "producer_epoch": producer.producer_epoch,
                        "coordinator_epoch": producer.coordinator_epoch,
                        "last_timestamp_ms": producer.last_timestamp,
                        "leader": leader,
                    }
                    for producer in part.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
    return transactions


async def _owner(client: KafkaClient, open_transaction: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The transactional id whose coordinator will write a marker into the partition, if there is one."""
    producer_id = open_transaction["producer_id"]
    for listed in await _list(client, ListTransactionsRequest(producer_id_filters=[producer_id])):
        described = await _describe(client, listed["transactional_id"])
        partition = {"topic": open_transaction["topic"], "partition": open_transaction["partition"]}
        if described["producer_id"] == producer_id and partition in described["partitions"]:
            return described
    return None


@app.command("abort")
def abort(
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=completion.topics, help="Where it hangs.")
    ],
    partition: Annotated[
        int,
        typer.Option(
            "--partition",
            "-p",
            metavar="PARTITION",
            autocompletion=completion.partitions,
            help="The partition of the topic.",
        ),
    ],
    start_offset: Annotated[
        int, typer.Option("--start-offset", metavar="OFFSET", help="First offset of the transaction (find-hanging).")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Abort also a transaction that its coordinator knows and ends itself.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Abort a transaction that hangs in a partition, by writing the marker that its coordinator does not write.

    Use it for transactions that `find-hanging` lists. A transaction that its coordinator knows is ended by its producer
    or its timeout; without `--force` the command refuses it, since its producer would lose records without an error.

    [bold]Example[/bold]

      barnabas transactions abort --topic flights --partition 3 --start-offset 1042
    """

    async def work(client: KafkaClient) -> None:
        found = [
            each
            for each in await _open_transactions(client, topic)
            if each["partition"] == partition and each["start_offset"] == start_offset
        ]
        if not found:
            raise ClientError(f"no transaction of {topic}-{partition} is open since offset {start_offset}")
        owner = None if force else await _owner(client, found[0])
        if owner is not None:
            raise ClientError(
                f"the transaction of {topic}-{partition} does not hang: it is that of transactional id"
                f" {owner['transactional_id']} (state {owner['state']}, timeout {owner['timeout_ms']} ms);"
                " --force aborts it here all the same"
            )
        await _abort(client, found[0])

    with_client(bootstrap_servers, work)
    item = {"topic": topic, "partition": partition, "start_offset": start_offset}
    report([Outcome(item, f"aborted the transaction of {topic}-{partition} open since offset {start_offset}")], as_json)


async def _abort(client: KafkaClient, transaction: Mapping[str, Any]) -> None:
    topic, partition = transaction["topic"], transaction["partition"]
    marker = WritableTxnMarker(
        producer_id=transaction["producer_id"],
        producer_epoch=transaction["producer_epoch"],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(0, transaction["coordinator_epoch"]),
    )
    response = await client.send(WriteTxnMarkersRequest(markers=[marker]), transaction["leader"])
    check(
        response.markers[0].topics[0].partitions[0].error_code,
        f"cannot abort the transaction of {topic}-{partition}",
    )


def _time_text(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
