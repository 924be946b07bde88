"""What commands that move partitions have in common: they show a plan, ask, start it, wait with a bar, and go on where
they were interrupted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from barnabas.broker.cli.output import (
    ClientError,
    complain,
    counted,
    note,
    print_json,
    print_table,
    say,
    with_client,
)
from barnabas.broker.client.client import RETRY_BACKOFF_S, KafkaClient
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import Placement, read_placement
from barnabas.broker.client.placement_plans import Replicas, copied_bytes
from barnabas.broker.client.reassignments import (
    Reassignment,
    Tell,
    elect,
    partition_text,
    reassign,
    reassignments,
    throttle,
    unthrottle,
    wait_for,
)

SHOWN_MAX = 40
"""Rows of a plan that are printed; --json has all."""

SETTLE_S = 5.0
"""How long brokers may take to tell what the controller has done."""

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES_PER_S",
        min=1,
        help="Copy so many bytes per second and broker at most; taken away at the end.",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        help="Move so many partitions at a time, the next when these are there (default: all); clients notice less.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast it goes: `rate` is in bytes per second and broker, `at_once` how many partitions move at a time; None
    means no limit."""

    rate: int | None = None
    at_once: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """Where partitions are, and, for those that are under way, will be."""

    placement: Placement
    moving: Mapping[TopicPartition, Reassignment]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is to do: replicas that partitions get, partitions under way that it waits for, and those that
    are to be led by their preferred replicas in the end."""

    situation: Situation
    targets: Mapping[TopicPartition, Replicas]
    awaited: Collection[TopicPartition] = ()
    to_elect: Collection[TopicPartition] = ()

    @property
    def elections(self) -> list[TopicPartition]:
        """The partitions that only get another leader."""
        return sorted({*self.to_elect} - {*self.targets, *self.awaited})

    def as_document(self) -> dict[str, Any]:
        """The moves as `--json` prints them: those that are to be begun, and those that were before."""
        awaited = [
            {"topic": topic, "partition": index, "to": list(self.situation.moving[topic, index].target)}
            for topic, index in self.awaited
        ]
        elections = [{"topic": topic, "partition": index} for topic, index in self.elections]
        return {"moves": self.as_rows(), "awaited": awaited, "elections": elections}

    def as_rows(self) -> list[dict[str, Any]]:
        """The partitions whose replicas change."""
        places = self.situation.placement.partitions
        return [
            {
                "topic": topic,
                "partition": index,
                "from": list(places[topic, index].replicas),
                "to": list(new),
                "bytes": copied_bytes(self.situation.placement, {(topic, index): new}),
            }
            for (topic, index), new in self.targets.items()
        ]


async def read_situation(client: KafkaClient) -> Situation:
    """Ask the cluster. Errors: ClientError."""
    moving = await reassignments(client)
    placement = await read_placement(client)
    for problem in placement.problems:
        complain(problem)
    partitions = {
        partition: replace(place, replicas=moving[partition].target) if partition in moving else place
        for partition, place in placement.partitions.items()
    }
    return Situation(replace(placement, partitions=partitions), moving)


def check_nobody_else_moves(plan: Plan) -> None:
    """Errors: ClientError where a partition of the plan is on its way to other brokers."""
    for partition in plan.targets:
        if partition in plan.situation.moving:
            to = ids_text(plan.situation.moving[partition].target)
            topic, index = partition
            raise ClientError(
                f"{partition_text(partition)} is on its way to brokers {to} already: wait until it is there, or cancel"
                f" that (barnabas topics reassign {topic}:{index} --cancel)"
            )


def carry_out(
    bootstrap_servers: str, plan: Plan, *, pace: Pace, yes: bool, as_json: bool, facts: Mapping[str, Any]
) -> bool:
    """Show a plan, ask, do it and wait; whether it was done. `facts` are told beside it as JSON, by which nobody is
    asked: without `yes` nothing is done, and with it the plan is shown beside the document, which comes when all is
    done. Errors: ClientError."""
    check_nobody_else_moves(plan)
    if not yes and as_json:
        print_json({**facts, **plan.as_document(), "executed": False})
        return False
    _show(plan, is_beside=as_json)
    sys.stdout.flush()  # somebody may watch a file or a pipe
    if (plan.targets or plan.elections) and not yes:
        _ask()
    with_client(bootstrap_servers, lambda client: _do(client, plan, pace))
    if as_json:
        print_json({**facts, **plan.as_document(), "executed": True})
    return True


def _show(plan: Plan, *, is_beside: bool) -> None:
    """On standard output, or on standard error beside a document for programs."""
    tell = note if is_beside else say
    rows = plan.as_rows()
    if rows:
        print_table(
            ("TOPIC", "PARTITION", "FROM", "TO", "BYTES"),
            [
                (
                    row["topic"],
                    row["partition"],
                    ids_text(row["from"]),
                    ids_text(row["to"]),
                    row["bytes"],
                )
                for row in rows[:SHOWN_MAX]
            ],
            is_beside=is_beside,
        )
        if len(rows) > SHOWN_MAX:
            tell(f"... and {counted(len(rows) - SHOWN_MAX, 'partition')} more (--json shows all)")
        tell(f"{counted(len(rows), 'partition')} to change, {sum(row['bytes'] for row in rows)} bytes to copy")
    if plan.elections:
        tell(f"{counted(len(plan.elections), 'partition')} to be led by the preferred replica")
    if plan.awaited:
        tell(f"{counted(len(plan.awaited), 'partition')} on the way already")


def _ask() -> None:
    """Outside of any event loop, where Ctrl-C ends the process."""
    if not sys.stdin.isatty():
        raise ClientError("nothing was changed: nobody can be asked here, --yes goes on without")
    sys.stderr.write("go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ClientError("nothing was changed")


async def _do(client: KafkaClient, plan: Plan, pace: Pace) -> None:
    if pace.rate is not None and (plan.targets or plan.awaited):
        await throttle(client, pace.rate, _to_throttle(plan))
    refused, wanted = await _move(client, plan, pace.at_once)
    failures = [f"cannot move {partition_text(each)}: {why}" for each, why in refused.items()]
    if wanted:
        failures += await _not_as_planned(client, wanted)
    failures += await _not_led_as_planned(client, [each for each in plan.to_elect if each not in refused])
    if not await reassignments(client) and await unthrottle(client):
        note("the throttle is taken away")
    if failures:
        for each in failures[:-1]:
            complain(each)
        raise ClientError(failures[-1])


async def _move(
    client: KafkaClient, plan: Plan, at_once: int | None
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, Replicas]]:
    """Begin what is planned, turn by turn, and wait for it; why partitions were refused, and where the others are to
    be."""
    refused: dict[TopicPartition, str] = {}
    wanted: dict[TopicPartition, Replicas] = {each: plan.situation.moving[each].target for each in plan.awaited}
    turns = _turns(plan, at_once)
    is_told = False
    for number, targets in enumerate(turns):
        refused |= {each: why for each, why in (await _started(client, targets)).items() if why}
        wanted |= {each: new for each, new in targets.items() if each not in refused}
        if not wanted:
            continue
        if not is_told:
            _tell_of_begin(len(plan.awaited) + len(plan.targets) - len(refused), at_once)
            is_told = True
        with _bar(sum(map(len, turns[number + 1 :]))) as tell:
            await wait_for(client, wanted, tell, _complain_of_away)
    return refused, wanted


def _tell_of_begin(count: int, at_once: int | None) -> None:
    how = "on the way" if at_once is None else f"to move, {at_once} at a time"
    note(f"{counted(count, 'partition')} {how}; after Ctrl-C the same command goes on{' waiting' * (at_once is None)}")


def _turns(plan: Plan, at_once: int | None) -> list[dict[TopicPartition, Replicas]]:
    """What begins together, one turn after the other. What is under way already has the first turn for itself, if not
    all go at once."""
    targets = list(plan.targets.items())
    if at_once is None:
        return [dict(targets)] if targets or plan.awaited else []
    turns = [dict(targets[begin : begin + at_once]) for begin in range(0, len(targets), at_once)]
    return [{}, *turns] if plan.awaited else turns


def _complain_of_away(broker: int, partition: TopicPartition) -> None:
    topic, index = partition
    complain(
        f"broker {broker} is away, and {partition_text(partition)} waits for it: start it again, or give that up"
        f" (barnabas topics reassign {topic}:{index} --cancel)"
    )


def _to_throttle(plan: Plan) -> dict[TopicPartition, Reassignment]:
    """What shall move, and what does already in the same topics, whose lists of throttled replicas are written anew."""
    topics = {topic for topic, _ in (*plan.targets, *plan.awaited)}
    moving = {each: one for each, one in plan.situation.moving.items() if each[0] in topics}
    for partition, new in plan.targets.items():
        old = plan.situation.placement.partitions[partition].replicas
        adding = tuple(each for each in new if each not in old)
        moving[partition] = Reassignment((*old, *adding), adding, ())
    return moving


async def _started(client: KafkaClient, targets: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, str | None]:
    return await reassign(client, targets) if targets else {}


async def _not_led_as_planned(client: KafkaClient, partitions: Collection[TopicPartition]) -> list[str]:
    """Partitions that could not be given to their preferred leaders, in words."""
    results = await elect(client, partitions) if partitions else {}
    return [f"cannot elect a leader of {partition_text(each)}: {why}" for each, why in results.items() if why]


async def _not_as_planned(client: KafkaClient, wanted: Mapping[TopicPartition, Replicas]) -> list[str]:
    """Partitions that have other replicas than they should, in words."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        metadata = await client.metadata(sorted({topic for topic, _ in wanted}))
        found = {
            (topic.name or "", part.partition_index): tuple(part.replica_nodes)
            for topic in metadata.topics
            for part in topic.partitions
        }
        other = {each: found[each] for each, new in wanted.items() if each in found and found[each] != new}
        if not other or asyncio.get_running_loop().time() > deadline:
            return [
                f"{partition_text(each)} has replicas {ids_text(replicas)} instead of {ids_text(wanted[each])}:"
                " somebody else has changed that; run the command again"
                for each, replicas in other.items()
            ]
        await asyncio.sleep(RETRY_BACKOFF_S)


@contextmanager
def _bar(later: int) -> Iterator[Tell]:
    """A bar on standard error, where somebody can see it. So many partitions more move `later`."""
    if not sys.stderr.isatty():
        yield lambda copied, total, left: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("moving", total=None)
        yield lambda copied, total, left: bar.update(
            task, completed=copied, total=total, description=f"{counted(left + later, 'partition')} left"
        )


Prepare = Callable[[Situation], Plan]


def planned(bootstrap_servers: str, prepare: Prepare) -> Plan:
    """The plan that `prepare` makes of what the cluster is like. Errors: ClientError."""
    return prepare(with_client(bootstrap_servers, read_situation))


def ids_text(ids: Sequence[int]) -> str:
    """Broker ids as people read them: `1,2,3`."""
    return ",".join(map(str, ids))
