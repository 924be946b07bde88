"""`barnabas groups`: list, describe, reset-offsets, delete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    complain,
    print_json,
    print_table,
    report_failures,
    say,
    with_client,
)
from barnabas.broker.client.client import ClientError, KafkaClient, check
from barnabas.broker.client.consumer import EARLIEST, LATEST, Positions, TopicPartition
from barnabas.broker.client.group import OFFSETS_BY_NAME_MAX, commit_request, describe_assignment, fetch_committed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest

app = typer.Typer(no_args_is_help=True, help="Look at consumer groups, move their offsets.")

_DEAD = "Dead"
_NO_MEMBERS = frozenset(("Empty", _DEAD))

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Ids of groups.")]


@app.command("list")
def list_groups(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the groups of all brokers.

    [bold]Example[/bold]

      barnabas groups list
    """
    groups = with_client(bootstrap_servers, _list)
    if as_json:
        print_json(groups)
        return
    print_table(("GROUP", "STATE", "PROTOCOL TYPE"), [(g["group"], g["state"], g["protocol_type"]) for g in groups])


async def _list(client: KafkaClient) -> list[dict[str, Any]]:
    groups = []
    for node_id in client.node_ids():
        response = await client.send(ListGroupsRequest(), node_id)
        check(response.error_code, f"cannot list the groups of broker {node_id}")
        groups += [
            {"group": group.group_id, "state": group.group_state, "protocol_type": group.protocol_type}
            for group in response.groups
        ]
    return sorted(groups, key=lambda group: group["group"])


@app.command("describe")
def describe(
    groups: Groups,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show members, committed offsets and lag.

    [bold]Examples[/bold]

      barnabas groups describe loader
      barnabas groups describe loader --json | jq '.[0].offsets | map(.lag) | add'
    """

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        return [await _describe(client, group) for group in groups]

    described = with_client(bootstrap_servers, work)
    if as_json:
        print_json(described)
        return
    for number, group in enumerate(described):
        if number:
            say("")
        _print_group(group)


def _print_group(group: Mapping[str, Any]) -> None:
    protocol = f", assignor {group['assignor']}" if group["assignor"] else ""
    say(f"group {group['group']}: {group['state']}, {len(group['members'])} members{protocol}")
    owners = {
        (partition["topic"], partition["partition"]): member["client_id"]
        for member in group["members"]
        for partition in member["partitions"]
    }
    if group["offsets"] or owners:
        print_table(
            ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "CLIENT"),
            [
                (
                    row["topic"],
                    row["partition"],
                    row["offset"],
                    row["end_offset"],
                    row["lag"],
                    owners.get((row["topic"], row["partition"])),
                )
                for row in group["offsets"]
            ],
        )
    if group["members"]:
        print_table(
            ("MEMBER", "CLIENT", "HOST", "PARTITIONS"),
            [(m["member_id"], m["client_id"], m["client_host"], len(m["partitions"])) for m in group["members"]],
        )


async def _describe(client: KafkaClient, group_id: str) -> dict[str, Any]:
    group = await _described(client, group_id)
    committed = await fetch_committed(client, group_id, None)
    assigned = {partition for member in group.members for partition in describe_assignment(member.member_assignment)}
    partitions = sorted(committed.keys() | assigned)
    ends = await _end_offsets(client, partitions)
    return {
        "group": group_id,
        "state": group.group_state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol_data,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "partitions": [
                    {"topic": topic, "partition": index}
                    for topic, index in describe_assignment(member.member_assignment)
                ],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": topic,
                "partition": index,
                "offset": committed.get((topic, index)),
                "end_offset": ends.get((topic, index)),
                "lag": _lag(committed.get((topic, index)), ends.get((topic, index))),
            }
            for topic, index in partitions
        ],
    }


def _lag(offset: int | None, end: int | None) -> int | None:
    return None if offset is None or end is None else max(0, end - offset)


async def _described(client: KafkaClient, group_id: str) -> DescribedGroup:
    node_id = await client.coordinator(group_id)
    response = await client.send(DescribeGroupsRequest(groups=[group_id]), node_id)
    group: DescribedGroup = response.groups[0]
    # Before version 6 a group that does not exist is an empty answer in state Dead.
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD:
        raise ClientError(f"group {group_id} does not exist")
    check(group.error_code, f"cannot describe group {group_id}", group.error_message)
    return group


async def _end_offsets(client: KafkaClient, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of those partitions that still exist."""
    positions = Positions(client)
    existing = []
    for topic in sorted({topic for topic, _ in partitions}):
        try:
            await positions.refresh([topic])
        except ClientError:
            continue  # the topic is gone, its offsets are not yet
        existing.append(topic)
    if not existing:
        return {}
    await positions.refresh(existing)
    known = set(positions.partitions())
    return await positions.offsets([partition for partition in partitions if partition in known], LATEST)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", metavar="TOPIC[:P,P...]", help="A topic, or some of its partitions.")
    ],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="To this offset.")] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="Forward, or back where negative.")] = None,
    to_datetime: Annotated[
        datetime | None, typer.Option("--to-datetime", help="To the first record from this (local) time on.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without it, only show what would be done.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group that has no members.

    [bold]Examples[/bold]

      barnabas groups reset-offsets loader --topic flights --to-earliest
      barnabas groups reset-offsets loader --topic flights:0,3 --shift-by -100 --execute
      barnabas groups reset-offsets loader --topic flights --to-datetime 2026-01-31T12:00:00 --execute
    """
    chosen = [to_earliest, to_latest, to_offset is not None, shift_by is not None, to_datetime is not None]
    if sum(chosen) != 1:
        raise typer.BadParameter("choose one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime")

    async def targets(
        positions: Positions, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        first = await positions.offsets(partitions, EARLIEST)
        last = await positions.offsets(partitions, LATEST)
        if to_earliest:
            return first
        if to_latest:
            return last
        if to_datetime is not None:
            found = await positions.offsets(partitions, int(to_datetime.timestamp() * 1000))
            return {partition: last[partition] if offset < 0 else offset for partition, offset in found.items()}
        wanted = {
            partition: to_offset
            if to_offset is not None
            else committed.get(partition, first[partition]) + (shift_by or 0)
            for partition in partitions
        }
        # What lies outside is moved to the nearer end, as Kafka's tool does.
        return {p: min(max(offset, first[p]), last[p]) for p, offset in wanted.items()}

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        positions = Positions(client)
        partitions = await _named_partitions(positions, topic)
        committed = await fetch_committed(client, group, partitions)
        new = await targets(positions, partitions, committed)
        if execute:
            await _commit(client, group, new)
        return [
            {"topic": name, "partition": index, "old_offset": committed.get((name, index)), "new_offset": offset}
            for (name, index), offset in sorted(new.items())
        ]

    rows = with_client(bootstrap_servers, work)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("TOPIC", "PARTITION", "OLD OFFSET", "NEW OFFSET"),
        [(row["topic"], row["partition"], row["old_offset"], row["new_offset"]) for row in rows],
    )
    if not execute:
        complain("nothing was changed: add --execute to do it")


async def _named_partitions(positions: Positions, options: list[str]) -> list[TopicPartition]:
    wanted: dict[str, set[int] | None] = {}
    for option in options:
        name, colon, indexes = option.partition(":")
        if colon and not all(index.isdecimal() for index in indexes.split(",")):
            raise typer.BadParameter(f"{option!r} is not TOPIC[:PARTITION,...]", param_hint="--topic")
        wanted[name] = {int(index) for index in indexes.split(",")} if colon else None
    await positions.refresh(wanted)
    known = positions.partitions()
    for name, chosen in wanted.items():
        missing = (chosen or set()) - {index for topic, index in known if topic == name}
        if missing:
            raise ClientError(f"topic {name} has no partition {', '.join(map(str, sorted(missing)))}")
    return [(name, index) for name, index in known if (chosen := wanted[name]) is None or index in chosen]


async def _commit(client: KafkaClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    node_id = await client.coordinator(group)
    response = await client.send(commit_request(group, offsets), node_id, max_version=OFFSETS_BY_NAME_MAX)
    for answer in response.topics:
        for partition in answer.partitions:
            if partition.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise ClientError(f"group {group} has members: stop them before moving its offsets")
            check(partition.error_code, f"cannot move {answer.name}-{partition.partition_index}")


@app.command("delete")
def delete(groups: Groups, bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS) -> None:
    """Delete groups without members, and their offsets.

    [bold]Example[/bold]

      barnabas groups delete loader
    """

    async def work(client: KafkaClient) -> dict[str, str]:
        failures = {}
        for group in groups:
            node_id = await client.coordinator(group)
            response = await client.send(DeleteGroupsRequest(groups_names=[group]), node_id)
            error = ErrorCode.of(response.results[0].error_code)
            if error:
                failures[group] = f"cannot delete group {group}: {error.message} ({error.name})"
            else:
                say(f"group {group} is deleted")
        return failures

    report_failures(with_client(bootstrap_servers, work))
