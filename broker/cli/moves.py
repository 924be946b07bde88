"""The common part of commands that move partitions: they show a plan (`move_plan.py`), ask, start it, wait with a
progress bar, and continue after an interruption."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from barnabas.broker.cli.move_plan import Plan, as_arguments, check_nobody_else_moves, ids_text, show, some_text
from barnabas.broker.cli.output import ClientError, complain, counted, note, print_json, with_client
from barnabas.broker.client.client import RETRY_BACKOFF_S, KafkaClient
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement_plans import Replicas
from barnabas.broker.client.reassignments import (
    Reassignment,
    Tell,
    elect,
    partition_text,
    reassign,
    reassignments,
    throttle,
    throttled_rate,
    unthrottle,
    wait_for,
)

SETTLE_S = 5.0
"""The time in which brokers usually report a change of the controller."""

SETTLE_WHERE_SLOW_S = 30.0
"""The same, while a broker still reports partitions in their state during the move, as it has received nothing since;
also how long preferred replicas may take to be in sync again."""

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES_PER_S",
        min=1,
        help="Copy at most this many bytes per second and broker; removed at the end.",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        help="Move at most this many partitions at a time (default: all); with few, clients notice less.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed: `rate` is in bytes per second and broker, `at_once` how many partitions move at a time; None means no
    limit."""

    rate: int | None = None
    at_once: int | None = None


def carry_out(
    bootstrap_servers: str, plan: Plan, *, pace: Pace, yes: bool, as_json: bool, facts: Mapping[str, Any]
) -> bool:
    """Show a plan, ask, carry it out and wait; returns whether it was carried out. `facts` are added to the JSON
    output, with which there is no question: without `yes` nothing is done, and with it the plan is printed on standard
    error, and the document when all is done. Errors: ClientError."""
    check_nobody_else_moves(plan)
    if not yes and as_json:
        print_json({**facts, **plan.as_document(), "executed": False})
        return False
    show(plan, is_beside=as_json)
    sys.stdout.flush()  # a file or a pipe may be watched
    if (plan.targets or plan.elections) and not yes:
        _ask()
    with_client(bootstrap_servers, lambda client: _do(client, plan, pace))
    if as_json:
        print_json({**facts, **plan.as_document(), "executed": True})
    return True


def _ask() -> None:
    """Ask outside of any event loop, where Ctrl-C ends the process."""
    if not sys.stdin.isatty():
        raise ClientError(
            "nothing was changed: standard input is not a terminal, so nothing can be confirmed; pass --yes to go on"
        )
    sys.stderr.write("go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ClientError("nothing was changed")


async def _do(client: KafkaClient, plan: Plan, pace: Pace) -> None:
    if pace.rate is None and plan.awaited:
        pace = replace(pace, rate=await _former_rate(client, plan))
    refused, wanted = await _move(client, plan, pace)
    failures = [f"cannot move {partition_text(each)}: {why}" for each, why in refused.items()]
    if wanted:
        failures += await _not_as_planned(client, wanted)
    failures += await _not_led_as_planned(client, [each for each in plan.to_elect if each not in refused])
    await end_throttle(client)
    if failures:
        for each in failures[:-1]:
            complain(each)
        raise ClientError(failures[-1])


async def _former_rate(client: KafkaClient, plan: Plan) -> int | None:
    """The throttle that an interrupted run has left for the reassignments in progress."""
    moving = plan.situation.moving
    rate = await throttled_rate(client, {broker for each in plan.awaited for broker in moving[each].replicas})
    if rate is not None:
        note(f"throttled to {rate} bytes per second, as before: --throttle changes it")
    return rate


async def end_throttle(client: KafkaClient) -> None:
    """Remove the throttle, if there is one and no reassignment is in progress. Errors: ClientError."""
    if not await reassignments(client) and await unthrottle(client):
        note("the throttle is removed")


async def _move(
    client: KafkaClient, plan: Plan, pace: Pace
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, Replicas]]:
    """Start the plan, turn by turn, and wait for it; returns the errors of refused partitions, and the target replicas
    of the others."""
    refused: dict[TopicPartition, str] = {}
    wanted: dict[TopicPartition, Replicas] = {each: plan.situation.moving[each].target for each in plan.awaited}
    turns = _turns(plan, pace.at_once)
    is_told = False
    for number, targets in enumerate(turns):
        if pace.rate is not None:
            # Each time: between two turns nothing is in progress, and another run may have removed the throttle.
            await throttle(client, pace.rate, await _to_throttle(client, plan, targets))
        refused |= {each: why for each, why in (await _started(client, targets)).items() if why}
        wanted |= {each: new for each, new in targets.items() if each not in refused}
        if not wanted:
            continue
        if not is_told:
            _tell_of_begin(len(plan.awaited) + len(plan.targets) - len(refused), pace.at_once)
            is_told = True
        begun = [each for each in targets if each not in refused]
        _complain_of_leaderless(plan, begun if number else [*begun, *plan.awaited])
        with _bar(sum(map(len, turns[number + 1 :]))) as tell:
            await wait_for(client, wanted, tell, _complain_of_away)
    return refused, wanted


def _tell_of_begin(count: int, at_once: int | None) -> None:
    how = "on the way" if at_once is None else f"to move, {at_once} at a time"
    aim = "wait again" if at_once is None else "continue"
    note(f"{counted(count, 'partition')} {how}; to {aim} after Ctrl-C, repeat the command")


def _turns(plan: Plan, at_once: int | None) -> list[dict[TopicPartition, Replicas]]:
    """The partitions that start together, one turn after the other. Reassignments in progress have the first turn for
    themselves, unless all start at once."""
    targets = list(plan.targets.items())
    if at_once is None:
        return [dict(targets)] if targets or plan.awaited else []
    turns = [dict(targets[begin : begin + at_once]) for begin in range(0, len(targets), at_once)]
    return [{}, *turns] if plan.awaited else turns


def _complain_of_away(broker: int, partitions: Sequence[TopicPartition]) -> None:
    complain(
        f"broker {broker} is away, and is to get {some_text(partitions)}: start it again, or cancel that"
        f" (barnabas topics reassign {as_arguments(partitions)} --cancel)"
    )


def _complain_of_leaderless(plan: Plan, wanted: Iterable[TopicPartition]) -> None:
    """Warn of partitions without a leader, from which nothing can be copied."""
    places = plan.situation.placement.partitions
    found = sorted(each for each in wanted if each in places and places[each].leader < 0)
    if found:
        complain(
            f"there is no leader of {some_text(found)}: start brokers that have replicas, or cancel that"
            f" (barnabas topics reassign {as_arguments(found)} --cancel)"
        )


async def _to_throttle(
    client: KafkaClient, plan: Plan, targets: Mapping[TopicPartition, Replicas]
) -> dict[TopicPartition, Reassignment]:
    """The reassignments of this turn, and those in progress in the same topics, whose lists of throttled replicas are
    replaced."""
    topics = {topic for topic, _ in (*targets, *plan.awaited)}
    moving = {each: one for each, one in (await reassignments(client)).items() if each[0] in topics}
    for partition, new in targets.items():
        old = plan.situation.placement.partitions[partition].replicas
        adding = tuple(each for each in new if each not in old)
        moving[partition] = Reassignment((*old, *adding), adding, ())
    return moving


async def _started(client: KafkaClient, targets: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, str | None]:
    return await reassign(client, targets) if targets else {}


async def _not_led_as_planned(client: KafkaClient, partitions: Collection[TopicPartition]) -> list[str]:
    """Partitions whose preferred replicas could not be elected, as text. These were in sync when the plan was made, or
    have just moved; under load they may be out of sync for a moment."""
    results = await elect(client, partitions, wait_s=SETTLE_WHERE_SLOW_S) if partitions else {}
    return [f"cannot elect a leader of {partition_text(each)}: {why}" for each, why in results.items() if why]


async def _not_as_planned(client: KafkaClient, wanted: Mapping[TopicPartition, Replicas]) -> list[str]:
    """Partitions with other replicas than planned, as text."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    while True:
        metadata = await client.metadata(sorted({topic for topic, _ in wanted}))
        found = {
            (topic.name or "", part.partition_index): tuple(part.replica_nodes)
            for topic in metadata.topics
            for part in topic.partitions
        }
        other = {each: found[each] for each, new in wanted.items() if each in found and found[each] != new}
        is_late = any(set(replicas) > set(wanted[each]) for each, replicas in other.items())
        if not other or loop.time() - began_at > (SETTLE_WHERE_SLOW_S if is_late else SETTLE_S):
            return [
                f"{partition_text(each)} has replicas {ids_text(replicas)} instead of {ids_text(wanted[each])}:"
                " another command has changed that; run this one again"
                for each, replicas in other.items()
            ]
        await asyncio.sleep(RETRY_BACKOFF_S)


@contextmanager
def _bar(later: int) -> Iterator[Tell]:
    """A progress bar on standard error, if that is a terminal. `later` is the number of partitions in later turns."""
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
