"""`barnabas groups`: list, describe, reset-offsets, delete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion, values
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    Outcome,
    complain,
    counted,
    end_with,
    print_json,
    print_table,
    report,
    say,
    with_client,
)
from barnabas.broker.client.client import ClientError, KafkaClient, check
from barnabas.broker.client.consumer import LATEST, Positions, TopicPartition
from barnabas.broker.client.group import OFFSETS_BY_NAME_MAX, commit_request, describe_assignment, fetch_committed
from barnabas.broker.client.places import (
    BeforeEnd,
    Earliest,
    Place,
    ends,
    existing_topics,
    named_partitions,
    offsets_at,
    within,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest

app = Application(help="Show consumer groups, and move their offsets.")

_DEAD = "Dead"
_NO_MEMBERS = frozenset(("Empty", _DEAD))


class GroupMissing(ClientError):
    """The group does not exist."""


Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups, help="Id of the group.")]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP...", autocompletion=completion.groups, help="Ids of groups.")
]


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
    say(f"group {group['group']}: {group['state']}, {counted(len(group['members']), 'member')}{protocol}")
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
    # Before version 6 a missing group is a result without an error in state Dead.
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD:
        raise GroupMissing(f"group {group_id} does not exist")
    check(group.error_code, f"cannot describe group {group_id}", group.error_message)
    return group


async def _end_offsets(client: KafkaClient, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The end offsets of the partitions that still exist."""
    existing = await existing_topics(client, {topic for topic, _ in partitions})
    if not existing:
        return {}
    positions = Positions(client)
    await positions.refresh(existing)
    known = set(positions.partitions())
    return await positions.offsets([partition for partition in partitions if partition in known], LATEST)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P...]",
            autocompletion=completion.topic_partitions,
            help="A topic, or some of its partitions; repeatable.",
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics that the group has offsets of.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[
        Place | None,
        values.offset_option("--to-offset", help="To this offset; -N before the end."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward, or back where negative.")
    ] = None,
    to_datetime: Annotated[
        Place | None,
        values.moment_option("--to-datetime", help="To the first record since then"),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the offsets; without it, only show the result.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group that has no members. All moves are checked before any is made.

    [bold]Examples[/bold]

      barnabas groups reset-offsets loader --topic flights --to-earliest
      barnabas groups reset-offsets loader --all-topics --to-datetime -1h --execute
      barnabas groups reset-offsets loader --topic flights:0,3 --shift-by -100 --execute
      barnabas groups reset-offsets loader --topic flights --to-datetime 2026-01-31T12:00:00 --execute
    """
    if all_topics == bool(topic):
        raise typer.BadParameter("choose one of --topic and --all-topics")
    places = [Earliest() if to_earliest else None, BeforeEnd(0) if to_latest else None, to_offset, to_datetime]
    chosen = [place for place in places if place is not None]
    if len(chosen) + (shift_by is not None) != 1:
        raise typer.BadParameter("choose one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime")
    wanted = None if all_topics else values.topic_partitions(topic or [], "--topic")
    target = chosen[0] if chosen else shift_by or 0

    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        old, new = await _planned(client, group, wanted, target)
        errors = await _commit(client, group, new) if execute else {}
        return [
            {
                "topic": partition[0],
                "partition": partition[1],
                "old_offset": old.get(partition),
                "new_offset": offset,
                "error": errors.get(partition),
                "executed": execute and partition not in errors,
            }
            for partition, offset in sorted(new.items())
        ]

    rows = with_client(bootstrap_servers, work)
    if as_json:
        print_json(rows)
    else:
        names = ("topic", "partition", "old_offset", "new_offset")
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
    if not execute:
        complain("nothing was changed: add --execute to do it")
    end_with([f"cannot move {row['topic']}-{row['partition']}: {row['error']}" for row in rows if row["error"]])


async def _planned(
    client: KafkaClient, group: str, wanted: Mapping[str, set[int] | None] | None, target: Place | int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The committed offsets, and the new ones: at a position, or moved by a number. Prints which partitions are left
    out.

    Errors: ClientError, also if the group has members, whose own commits would follow.
    """
    state = await _state(client, group)
    if state not in _NO_MEMBERS:
        raise ClientError(f"group {group} has members: stop them before moving its offsets")
    committed = await fetch_committed(client, group, None)
    positions = Positions(client)
    partitions = await (
        _committed_partitions(positions, group, committed) if wanted is None else named_partitions(positions, wanted)
    )
    if isinstance(target, Place):
        new, moved = await offsets_at(positions, partitions, target)
    else:
        first, last = await ends(positions, partitions)
        new, moved = within({each: committed.get(each, first[each]) + target for each in partitions}, first, last)
    for move in moved:
        complain(str(move))
    if state == _DEAD:
        complain(f"group {group} does not exist yet: committing these offsets creates it")
    return committed, new


async def _state(client: KafkaClient, group: str) -> str:
    try:
        return (await _described(client, group)).group_state
    except GroupMissing:
        return _DEAD


async def _committed_partitions(
    positions: Positions, group: str, committed: Collection[TopicPartition]
) -> list[TopicPartition]:
    """The partitions that still exist; the others are printed, as their offsets stay. Errors:
    ClientError if none does."""
    existing = await existing_topics(positions.client, {topic for topic, _ in committed})
    for topic in sorted({topic for topic, _ in committed} - existing):
        complain(f"topic {topic} does not exist any more: its offsets stay as they are")
    if not existing:
        raise ClientError(f"group {group} has no offsets: name topics with --topic")
    await positions.refresh(existing)
    return [partition for partition in positions.partitions() if partition in committed]


async def _commit(client: KafkaClient, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    """Commit offsets; returns those that were refused, with the reason."""
    node_id = await client.coordinator(group)
    response = await client.send(commit_request(group, offsets), node_id, max_version=OFFSETS_BY_NAME_MAX)
    return {
        (topic.name, partition.partition_index): f"{error.message} ({error.name})"
        for topic in response.topics
        for partition in topic.partitions
        if (error := ErrorCode.of(partition.error_code))
    }


@app.command("delete")
def delete(
    groups: Groups, bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, as_json: AsJson = False
) -> None:
    """Delete groups without members, and their offsets.

    [bold]Example[/bold]

      barnabas groups delete loader
    """

    async def work(client: KafkaClient) -> list[Outcome]:
        return [await _delete(client, group) for group in groups]

    report(with_client(bootstrap_servers, work), as_json)


async def _delete(client: KafkaClient, group: str) -> Outcome:
    node_id = await client.coordinator(group)
    response = await client.send(DeleteGroupsRequest(groups_names=[group]), node_id)
    error = ErrorCode.of(response.results[0].error_code)
    if error:
        why = f"cannot delete group {group}: {error.message} ({error.name})"
        return Outcome({"group": group, "deleted": False}, why, is_failure=True)
    return Outcome({"group": group, "deleted": True}, f"group {group} is deleted")
