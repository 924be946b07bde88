"""`barnabas topics`: list, create, describe, alter, delete; `contents.py` has the commands about contents."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion, contents, reassignment
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.ill_partitions import (
    UNAVAILABLE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    ill_partitions,
    print_ill_partitions,
)
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    Outcome,
    counted,
    print_json,
    print_table,
    report,
    say,
    with_client,
)
from barnabas.broker.cli.values import key_values
from barnabas.broker.client.client import ClientError, KafkaClient, check
from barnabas.broker.client.configs import TOPIC, alter_configs, describe_configs, meant_instead
from barnabas.broker.client.errors import timed_out
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.metadata import MetadataResponseTopic
from barnabas.wire.names import topic_id_to_text

app = Application(help="Create, show and change topics.")

_TIMEOUT_MS = 30_000
_DYNAMIC_TOPIC_CONFIG = 1

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics, help="Name of the topic.")]
NewTopics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]
Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", autocompletion=completion.topics, help="Names of topics.")
]


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics, too.")] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Partitions with replicas that are not in sync.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Partitions without a leader.")] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Partitions with fewer in sync than min.insync.replicas.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List topics.

    With --under-replicated, --unavailable or --under-min-isr, list such partitions, those of internal topics, too.

    [bold]Examples[/bold]

      barnabas topics list
      barnabas topics list --json | jq -r '.[].name'
      barnabas topics list --under-replicated
      barnabas topics list --unavailable --under-min-isr --json
    """
    asked = {UNDER_REPLICATED: under_replicated, UNAVAILABLE: unavailable, UNDER_MIN_ISR: under_min_isr}
    if wanted := [state for state, is_asked in asked.items() if is_asked]:
        ill = with_client(bootstrap_servers, lambda client: ill_partitions(client, wanted))
        print_ill_partitions(ill, wanted, as_json)
        return
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
    topics: NewTopics,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="-1: the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option("--replication-factor", "-r", metavar="N", help="-1: the broker's default.replication.factor."),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KEY=VALUE",
            autocompletion=completion.topic_keys,
            help="A topic config; may be repeated.",
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Topics that exist are no error.")] = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Only check the request.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
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

    async def work(client: KafkaClient) -> list[Outcome]:
        response = await client.send_to_controller(request, may_repeat=False)
        brokers = len(client.node_ids())
        return [_created(topic, configs, if_not_exists, validate_only, brokers) for topic in response.topics]

    report(with_client(bootstrap_servers, work), as_json)


def _created(
    topic: CreatableTopicResult, configs: Collection[str], if_not_exists: bool, validate_only: bool, broker_count: int
) -> Outcome:
    error = ErrorCode.of(topic.error_code)
    if error is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
        return Outcome({"topic": topic.name, "created": False}, f"{topic.name} exists already")
    if error:
        why = f"{topic.error_message or error.message} ({error.name})"
        if error is ErrorCode.INVALID_REPLICATION_FACTOR:
            why += f"; the cluster has {counted(broker_count, 'broker')}"
        why += meant_instead(error, configs) + timed_out(error, "it may still be created")
        return Outcome({"topic": topic.name, "created": False}, f"cannot create {topic.name}: {why}", is_failure=True)
    done = "could be" if validate_only else "is"
    return Outcome({"topic": topic.name, "created": not validate_only}, f"{topic.name} {done} created")


@app.command("describe")
def describe(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", autocompletion=completion.topics, help="All topics if none is named."),
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
        await client.check_topic(topic.name or "", topic.error_code)
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
        int | None, typer.Option("--partitions", "-p", metavar="N", help="Raise the number of partitions.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="KEY=VALUE", autocompletion=completion.topic_keys, help="Override a config."
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            metavar="KEY",
            autocompletion=completion.deleted_topic_keys,
            help="Go back to the broker's default.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Add partitions, change configs; both are checked before anything is changed.

    [bold]Examples[/bold]

      barnabas topics alter flights --partitions 12
      barnabas topics alter flights --config retention.ms=86400000 --delete-config segment.bytes
    """
    changes = key_values(config or [], "--config")
    if partitions is None and not changes and not delete_config:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --delete-config")

    async def add_partitions(client: KafkaClient, validate_only: bool) -> None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=partitions or 0, assignments=None)],
            timeout_ms=_TIMEOUT_MS,
            validate_only=validate_only,
        )
        result = (await client.send_to_controller(request, may_repeat=False)).results[0]
        message = result.error_message or ErrorCode.of(result.error_code).message
        message += timed_out(result.error_code, "they may still be added")
        check(result.error_code, f"cannot add partitions to {topic}", message)

    async def change_configs(client: KafkaClient, validate_only: bool) -> None:
        await alter_configs(
            client, TOPIC, topic, set_to=changes, delete=delete_config or [], validate_only=validate_only
        )

    steps = [
        *([(add_partitions, "partitions", f"{topic} has {partitions} partitions")] if partitions is not None else []),
        *([(change_configs, "configs", f"configs of {topic} are changed")] if changes or delete_config else []),
    ]

    async def work(client: KafkaClient) -> list[Outcome]:
        for step, _, _ in steps:
            await step(client, True)
        outcomes = []
        for step, part, sentence in steps:
            try:
                await step(client, False)
                outcomes.append(Outcome({"topic": topic, "changed": part}, sentence))
            except ClientError as error:
                outcomes.append(Outcome({"topic": topic, "changed": None}, str(error), is_failure=True))
        return outcomes

    report(with_client(bootstrap_servers, work), as_json)


@app.command("delete")
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Topics that do not exist are no error.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all that is in them.

    [bold]Example[/bold]

      barnabas topics delete flights test-1 test-2
    """

    async def work(client: KafkaClient) -> list[Outcome]:
        request = DeleteTopicsRequest(timeout_ms=_TIMEOUT_MS)
        if await client.supports(DeleteTopicsRequest, 6):
            request.topics = [DeleteTopicState(name=name) for name in topics]
        else:
            request.topic_names = topics
        response = await client.send_to_controller(request, may_repeat=False)
        return [_deleted(result, if_exists) for result in response.responses]

    report(with_client(bootstrap_servers, work), as_json)


def _deleted(result: DeletableTopicResult, if_exists: bool) -> Outcome:
    name, error = result.name, ErrorCode.of(result.error_code)
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
        return Outcome({"topic": name, "deleted": False}, f"{name} does not exist")
    if error:
        why = f"{result.error_message or error.message} ({error.name})" + timed_out(error, "it may still be deleted")
        return Outcome({"topic": name, "deleted": False}, f"cannot delete {name}: {why}", is_failure=True)
    return Outcome({"topic": name, "deleted": True}, f"{name} is deleted")


app.command("reassign")(reassignment.reassign_partitions)
app.command("elect")(reassignment.elect_leaders)
app.command("offsets")(contents.offsets)
app.command("sizes")(contents.sizes)
app.command("delete-records")(contents.delete_records)

__all__ = ["app"]
