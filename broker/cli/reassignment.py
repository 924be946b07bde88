"""`barnabas topics reassign|elect`: reassign partitions, and elect leaders."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from barnabas.broker.cli import completion, values
from barnabas.broker.cli.move_plan import Plan, Situation, planned, some_text
from barnabas.broker.cli.moves import AtOnce, Pace, Throttle, Yes, carry_out, end_throttle
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    Outcome,
    report,
    say,
    with_client,
)
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.consumer import Positions, TopicPartition
from barnabas.broker.client.placement_plans import Replicas, check_brokers, plan_spread
from barnabas.broker.client.places import named_partitions
from barnabas.broker.client.reassignments import PREFERRED, UNCLEAN, elect, partition_text, reassign, reassignments

_PARTITIONS_METAVAR = "TOPIC[:P,P...]..."


def _ids(text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        raise typer.BadParameter(f"{text!r} is not ID,ID...: ids of brokers")
    ids = [int(each) for each in text.split(",")]
    if len(set(ids)) < len(ids):
        raise typer.BadParameter(f"{text!r} names a broker twice")
    return ids


def reassign_partitions(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar=_PARTITIONS_METAVAR,
            autocompletion=completion.topic_partitions,
            help="Topics, or some of their partitions.",
        ),
    ],
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="ID,ID...",
            autocompletion=completion.broker_ids,
            help="Exactly these brokers; the first one is the preferred leader.",
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            metavar="ID,ID...",
            autocompletion=completion.broker_ids,
            help="Spread over these brokers; replicas that are on them stay.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="This many replicas of each partition; existing ones stay, also on brokers that are away.",
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the moves under way.")] = False,
    throttle: Throttle = None,
    at_once: AtOnce = None,
    yes: Yes = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers, or to more or fewer of them, while clients write and read.

    Give --replicas alone, or --brokers or --replication-factor or both. --cancel takes none of them, and neither
    --throttle nor --at-once.

    Shows the plan, asks for confirmation, and waits until all is done. To go on waiting after Ctrl-C, run the command
    again. With --json there is no question: without --yes the command only shows the plan; with --yes it shows the plan
    on standard error, and prints the document at the end. Throttles are removed at the end, also those of another run
    or of kafka-reassign-partitions.

    [bold]Examples[/bold]

      barnabas topics reassign flights --brokers 1,2,3 --yes
      barnabas topics reassign flights:0,3 --replicas 2,3,1 --throttle 10000000
      barnabas topics reassign flights --replication-factor 3
      barnabas topics reassign flights --cancel
    """
    wanted = values.topic_partitions(topics, "TOPIC")
    exact, among = (None if text is None else _ids(text) for text in (replicas, brokers))
    if cancel:
        if exact or among or replication_factor or throttle or at_once:
            raise typer.BadParameter("--cancel goes alone")
        _cancel(bootstrap_servers, wanted, as_json)
        return
    if exact and (among or replication_factor):
        raise typer.BadParameter("--replicas excludes --brokers and --replication-factor")
    if not (exact or among or replication_factor):
        raise typer.BadParameter("give --replicas, or --brokers or --replication-factor or both, or --cancel")
    named = with_client(bootstrap_servers, lambda client: named_partitions(Positions(client), wanted))

    def prepare(situation: Situation) -> Plan:
        targets = _targets(situation, named, exact, among, replication_factor)
        awaited = [each for each in named if each in situation.moving and each not in targets]
        return Plan(situation, targets, awaited, [*targets, *awaited])

    plan = planned(bootstrap_servers, prepare)
    done = carry_out(bootstrap_servers, plan, pace=Pace(throttle, at_once), yes=yes, as_json=as_json, facts={})
    if done and not as_json:
        is_change = plan.targets or plan.awaited
        say("all replicas are where they should be" if is_change else "nothing to do: all replicas are there already")


def _targets(
    situation: Situation,
    named: list[TopicPartition],
    exact: list[int] | None,
    among: list[int] | None,
    replication_factor: int | None,
) -> dict[TopicPartition, Replicas]:
    placement = situation.placement
    if gone := [each for each in named if each not in placement.partitions]:
        raise ClientError(f"deleted during the move: {some_text(gone)}")
    if exact:
        check_brokers(placement, exact)
        return {each: tuple(exact) for each in named if placement.partitions[each].replicas != tuple(exact)}
    if among:
        return plan_spread(placement, named, among, replication_factor)
    away = placement.away()
    return plan_spread(placement, named, list(placement.brokers), replication_factor, keeping=away, away=away)


def _cancel(bootstrap_servers: str, wanted: dict[str, set[int] | None], as_json: bool) -> None:
    async def work(client: KafkaClient) -> list[Outcome]:
        named = await named_partitions(Positions(client), wanted)
        moving = await reassignments(client)
        cancelled = await reassign(client, {each: None for each in named if each in moving})
        await end_throttle(client)
        return [
            _outcome(each, "cancelled", f"{partition_text(each)} stays on its brokers", why)
            for each, why in cancelled.items()
        ]

    outcomes = with_client(bootstrap_servers, work)
    report(outcomes, as_json)
    if not outcomes and not as_json:
        say("no move is under way")


def _outcome(partition: TopicPartition, key: str, sentence: str, why: str | None) -> Outcome:
    topic, index = partition
    item = {"topic": topic, "partition": index, key: why is None}
    if why is not None:
        return Outcome(item, f"{partition_text(partition)} is not {key}: {why}", is_failure=True)
    return Outcome(item, sentence)


def elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"[{_PARTITIONS_METAVAR}]",
            autocompletion=completion.topic_partitions,
            help="All partitions if none is named.",
        ),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Elect a replica that is not in sync where no other is alive."),
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Elect the preferred replica of partitions, the first one, as their leader.

    With --unclean, elect a live replica of partitions without a leader; records that it lacks are lost.

    [bold]Examples[/bold]

      barnabas topics elect
      barnabas topics elect flights:0,3 --json
      barnabas topics elect flights --unclean
    """
    wanted = values.topic_partitions(topics or [], "TOPIC")
    if unclean and not wanted:
        raise typer.BadParameter("name the topics: an unclean election may lose records")

    async def work(client: KafkaClient) -> list[Outcome]:
        named = await named_partitions(Positions(client), wanted) if wanted else None
        results = await elect(client, named, UNCLEAN if unclean else PREFERRED)
        whom = "a live replica" if unclean else "its preferred replica"
        return [
            _outcome(each, "elected", f"{partition_text(each)} is led by {whom}", why)
            for each, why in sorted(results.items())
        ]

    outcomes = with_client(bootstrap_servers, work)
    report(outcomes, as_json)
    if not outcomes and not as_json:
        say("no election was needed")
