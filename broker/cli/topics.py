"""`barnabas topics`: list, create, describe, alter, delete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    key_values,
    print_json,
    print_table,
    report_failures,
    say,
    with_client,
)
from barnabas.broker.client.admin import TOPIC, alter_configs, describe_configs
from barnabas.broker.client.client import ClientError, KafkaClient, check
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.metadata import MetadataResponseTopic
from barnabas.wire.names import topic_id_to_text

app = typer.Typer(no_args_is_help=True, help="Create, look at and change topics.")

_TIMEOUT_MS = 30_000
_DYNAMIC_TOPIC_CONFIG = 1

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    internal: Annotated[bool, typer.Option("--internal", help="Show the broker's own topics, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List topics.

    [bold]Examples[/bold]

      barnabas topics list
      barnabas topics list --json | jq -r '.[].name'
    """
    topics = [topic for topic in with_client(bootstrap_servers, _all_topics) if internal or not topic.is_internal]
    if as_json:
        print_json([_summary(topic) for topic in topics])
        return
    print_table(
        ("TOPIC", "PARTITIONS", "REPLICAS", "ID"),
        [
            (topic.name, len(topic.partitions), _replication_factor(topic), topic_id_to_text(topic.topic_id))
            for topic in topics
        ],
    )


async def _all_topics(client: KafkaClient) -> list[MetadataResponseTopic]:
    response = await client.metadata(None)
    return sorted((topic for topic in response.topics if not topic.error_code), key=lambda topic: topic.name or "")


def _replication_factor(topic: MetadataResponseTopic) -> int:
    return max((len(partition.replica_nodes) for partition in topic.partitions), default=0)


def _summary(topic: MetadataResponseTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic_id_to_text(topic.topic_id),
        "internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


@app.command("create")
def create(
    topics: Topics,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="-1: the broker's num.partitions.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="-1: the broker's default.replication.factor.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Topics that exist are no error.")] = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Only say whether it would work.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Create topics.

    [bold]Examples[/bold]

      barnabas topics create flights --partitions 6
      barnabas topics create latest --config cleanup.policy=compact --config retention.ms=-1
    """
    configs = key_values(config or [], "--config")
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name in topics
        ],
        timeout_ms=_TIMEOUT_MS,
        validate_only=validate_only,
    )

    async def work(client: KafkaClient) -> Any:
        return await client.send_to_controller(request)

    failures = {}
    for topic in with_client(bootstrap_servers, work).topics:
        error = ErrorCode.of(topic.error_code)
        if error is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            say(f"{topic.name} exists already")
        elif error:
            failures[topic.name] = f"cannot create {topic.name}: {topic.error_message or error.message} ({error.name})"
        else:
            say(f"{topic.name} {'could be' if validate_only else 'is'} created")
    report_failures(failures)


@app.command("describe")
def describe(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="All topics if none is named.")
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, replicas and the configs that a topic overrides.

    [bold]Examples[/bold]

      barnabas topics describe flights
      barnabas topics describe flights --json | jq '.[0].partitions'
    """
    described = with_client(bootstrap_servers, lambda client: _describe(client, topics or None))
    if as_json:
        print_json(described)
        return
    for number, topic in enumerate(described):
        if number:
            say("")
        say(f"topic {topic['name']}, id {topic['id']}")
        for key, value in topic["configs"].items():
            say(f"  {key} = {value}")
        print_table(
            ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"),
            [
                (
                    partition["partition"],
                    None if partition["leader"] < 0 else partition["leader"],
                    partition["leader_epoch"],
                    ",".join(map(str, partition["replicas"])),
                    ",".join(map(str, partition["isr"])),
                )
                for partition in topic["partitions"]
            ],
        )


async def _describe(client: KafkaClient, names: list[str] | None) -> list[dict[str, Any]]:
    response = await client.metadata(names)
    topics = sorted(response.topics, key=lambda topic: topic.name or "")
    for topic in topics:
        check(topic.error_code, f"topic {topic.name}")
    if names is None:
        topics = [topic for topic in topics if not topic.is_internal]
    configs = await describe_configs(client, [(TOPIC, topic.name or "") for topic in topics])
    return [
        {
            **_summary(topic),
            "configs": {
                config.name: config.value
                for config in configs[TOPIC, topic.name or ""]
                if config.config_source == _DYNAMIC_TOPIC_CONFIG
            },
            "partitions": [
                {
                    "partition": partition.partition_index,
                    "leader": partition.leader_id,
                    "leader_epoch": partition.leader_epoch,
                    "replicas": partition.replica_nodes,
                    "isr": partition.isr_nodes,
                }
                for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
            ],
        }
        for topic in topics
    ]


@app.command("alter")
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="Raise the number of partitions.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Override a config.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Go back to the broker's default.")
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Add partitions, change configs.

    [bold]Examples[/bold]

      barnabas topics alter flights --partitions 12
      barnabas topics alter flights --config retention.ms=86400000 --delete-config segment.bytes
    """
    changes = key_values(config or [], "--config")
    if partitions is None and not changes and not delete_config:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --delete-config")

    async def work(client: KafkaClient) -> None:
        if partitions is not None:
            request = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=topic, count=partitions, assignments=None)], timeout_ms=_TIMEOUT_MS
            )
            result = (await client.send_to_controller(request)).results[0]
            check(result.error_code, f"cannot add partitions to {topic}", result.error_message)
            say(f"{topic} has {partitions} partitions")
        if changes or delete_config:
            await alter_configs(client, TOPIC, topic, set_to=changes, delete=delete_config or [])
            say(f"configs of {topic} are changed")

    with_client(bootstrap_servers, work)


@app.command("delete")
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Topics that do not exist are no error.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Delete topics and all that is in them.

    [bold]Example[/bold]

      barnabas topics delete flights test-1 test-2
    """

    async def work(client: KafkaClient) -> Any:
        request = DeleteTopicsRequest(timeout_ms=_TIMEOUT_MS)
        if await client.supports(DeleteTopicsRequest, 6):
            request.topics = [DeleteTopicState(name=name) for name in topics]
        else:
            request.topic_names = topics
        return await client.send_to_controller(request)

    failures = {}
    for result in with_client(bootstrap_servers, work).responses:
        error = ErrorCode.of(result.error_code)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            say(f"{result.name} does not exist")
        elif error:
            failures[result.name] = (
                f"cannot delete {result.name}: {result.error_message or error.message} ({error.name})"
            )
        else:
            say(f"{result.name} is deleted")
    report_failures(failures)


__all__ = ["ClientError", "app"]
