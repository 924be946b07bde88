"""`barnabas brokers list|drain|rebalance`: lists brokers and their loads, empties brokers, evens out the loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.move_plan import Plan, Situation, planned, some_text
from barnabas.broker.cli.moves import AtOnce, Pace, Throttle, Yes, carry_out
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    complain,
    print_json,
    print_table,
    say,
    with_client,
)
from barnabas.broker.client.balance import SLACK, is_even, plan_rebalance
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.placement import Placement, read_placement
from barnabas.broker.client.placement_plans import Loads, check_none_away, plan_spread

app = Application(help="Show brokers, drain them, and balance the load among them.")


@app.command("list")
def list_brokers(bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, as_json: AsJson = False) -> None:
    """List brokers: how many partitions each leads, how many replicas and bytes it has.

    STATE is up, controller (up, and the one that decides for the cluster), or away: it has replicas, but is stopped,
    lost or cut off from the metadata store.

    [bold]Examples[/bold]

      barnabas brokers list
      barnabas brokers list --json | jq '.[].state'
    """

    async def work(client: KafkaClient) -> tuple[Placement, int]:
        return await read_placement(client), client.controller_id

    placement, controller = with_client(bootstrap_servers, work)
    for problem in placement.problems:
        complain(problem)
    rows = broker_rows(placement, controller)
    if as_json:
        print_json(rows)
        return
    names = ("id", "host", "port", "rack", "state", "leads", "replicas", "not_in_sync", "bytes")
    columns = ["BROKER", *(name.upper().replace("_", " ") for name in names[1:])]
    print_table(columns, [[row[name] for name in names] for row in rows])


def broker_rows(placement: Placement, controller: int) -> list[dict[str, Any]]:
    """A row for each broker, including those that are down."""
    rows = []
    for broker in sorted([*placement.brokers, *placement.away()]):
        place = placement.brokers.get(broker)
        hosted = [each for each in placement.partitions.values() if broker in each.replicas]
        rows.append(
            {
                "id": broker,
                "host": place.host if place else None,
                "port": place.port if place else None,
                "rack": place.rack if place else None,
                "state": "away" if place is None else "controller" if broker == controller else "up",
                "leads": sum(each.leader == broker for each in hosted),
                "replicas": len(hosted),
                "not_in_sync": sum(broker not in each.in_sync for each in hosted),
                "bytes": None
                if place is None or broker in placement.silent
                else sum(size for (_, _, at), size in placement.replica_bytes.items() if at == broker),
            }
        )
    return rows


@app.command("drain")
def drain(
    brokers: Annotated[
        list[int],
        typer.Argument(metavar="ID...", min=0, autocompletion=completion.broker_ids, help="Ids of the brokers."),
    ],
    throttle: Throttle = None,
    at_once: AtOnce = None,
    yes: Yes = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Move every replica away from brokers, of internal topics, too, and say when they may be switched off.

    A broker that is gone for good can be drained, too: others get its replicas. If another broker with some of its
    partitions is away, start that one first. Drain several brokers with one command: the next drain or rebalance gives
    most to an empty broker that still runs.

    Shows the plan, asks for confirmation, and waits until all is done. To go on after Ctrl-C, run the command again.
    With --json there is no question: without --yes the command only shows the plan; with --yes it shows the plan on
    standard error, and prints the document at the end.

    [bold]Examples[/bold]

      barnabas brokers drain 3
      barnabas brokers drain 3 4 --throttle 50000000 --at-once 5 --yes
      barnabas brokers drain 3 --json | jq '[.moves[].bytes] | add'
    """
    leaving = sorted({*brokers})
    plan = planned(bootstrap_servers, lambda situation: plan_of_drain(situation, leaving))
    facts = {"brokers": leaving}
    if not carry_out(bootstrap_servers, plan, pace=Pace(throttle, at_once), yes=yes, as_json=as_json, facts=facts):
        return
    placement = with_client(bootstrap_servers, read_placement)
    left = [each for each, place in placement.partitions.items() if not {*leaving}.isdisjoint(place.replicas)]
    if without := [each for each in left if placement.partitions[each].leader < 0]:
        raise ClientError(
            f"on {_named(leaving)} there are partitions without a leader, {some_text(without)}: start brokers that have"
            " replicas of them, or delete topics that are lost"
        )
    if left:
        have = "has" if len(leaving) == 1 else "have"
        raise ClientError(f"{_named(leaving)} {have} new replicas, such as those of new topics: run the command again")
    if not as_json:
        has, it = ("has", "it") if len(leaving) == 1 else ("have", "they")
        say(f"{_named(leaving)} {has} no replicas: {it} may be switched off, before others are drained or rebalanced")


def plan_of_drain(situation: Situation, leaving: Sequence[int]) -> Plan:
    """Plan the moves of all partitions from the brokers `leaving` to others. Errors: ClientError, also if another
    broker with some of these partitions is down: it should be started first. Only if all brokers with a partition are
    `leaving` and down, they may be lost, and others get their partitions.
    """
    placement = situation.placement
    others = [each for each in placement.brokers if each not in leaving]
    awaited = [partition for partition, one in situation.moving.items() if not {*leaving}.isdisjoint(one.removing)]
    known = {
        *placement.brokers,
        *placement.away(),
        *(each for one in awaited for each in situation.moving[one].removing),
    }
    if unknown := [each for each in leaving if each not in known]:
        ids = ", ".join(map(str, placement.brokers))
        raise ClientError(f"there {'is' if len(unknown) == 1 else 'are'} no {_named(unknown)}: the cluster has {ids}")
    away = [each for each in placement.away() if each not in leaving]
    concerned = {
        partition: place
        for partition, place in placement.partitions.items()
        # a partition without a leader cannot be copied
        if not {*leaving}.isdisjoint(place.replicas) and place.leader >= 0
    }
    there = [each for each in leaving if each in placement.brokers]
    having = {
        each for place in concerned.values() if not {*there}.isdisjoint(place.replicas) for each in place.replicas
    }
    check_none_away([each for each in away if each in having])
    if not others:
        only, theirs = ("is the only one", "its") if len(leaving) == 1 else ("are all", "their")
        if away:
            only += " that is there" if len(leaving) == 1 else " that are there"
        raise ClientError(
            f"{_named(leaving)} {only}: start another broker of the cluster, which can take {theirs} partitions. (A"
            " broker started without --zookeeper and --brokers forms no cluster.)"
        )
    return Plan(situation, plan_spread(placement, list(concerned), others, away=away), awaited)


def _named(brokers: Sequence[int]) -> str:
    """Brokers as text: `broker 3`, `brokers 3, 4`."""
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"


@app.command("rebalance")
def rebalance(
    throttle: Throttle = None,
    at_once: AtOnce = None,
    yes: Yes = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Bring replicas, leaders and bytes of all brokers within 10 % of each other, with little to copy.

    Use it after a broker has joined. A large partition, or racks of different sizes, cannot be divided and stay uneven.

    Shows the plan, asks for confirmation, and waits until all is done, also for moves that are under way already. To
    go on after Ctrl-C, run the command again. With --json there is no question: without --yes the command only shows
    the plan; with --yes it shows the plan on standard error, and prints the document at the end.

    [bold]Examples[/bold]

      barnabas brokers rebalance
      barnabas brokers rebalance --throttle 50000000 --yes
      barnabas brokers rebalance --json | jq '[.moves[].bytes] | add'
    """
    plan = planned(bootstrap_servers, plan_of_rebalance)
    uneven = uneven_after(plan)
    facts = {"uneven": uneven}
    if (
        not carry_out(bootstrap_servers, plan, pace=Pace(throttle, at_once), yes=yes, as_json=as_json, facts=facts)
        or as_json
    ):
        return
    if uneven:
        why = "run the command again" if plan.awaited else "partitions or racks cannot be divided better"
        say(f"{' and '.join(uneven)} of brokers are more than {SLACK * 100:.0f} % apart: {why}")
    else:
        say("replicas, leaders and bytes of all brokers are as even as they should be")


def plan_of_rebalance(situation: Situation) -> Plan:
    """Plan the rebalance of all brokers; reassignments in progress count as done. Errors: ClientError."""
    placement, moving = situation.placement, situation.moving
    targets = {each: new for each, new in plan_rebalance(placement).items() if each not in moving}
    led_by_others = [
        each
        for each, place in placement.partitions.items()
        if place.leader != place.replicas[0] and place.replicas[0] in place.in_sync
    ]
    return Plan(situation, targets, list(moving), sorted({*led_by_others, *targets, *moving}))


def uneven_after(plan: Plan) -> list[str]:
    """The loads that will not be within 10 %, or one partition, of each other: replicas, leaders or bytes."""
    placement = plan.situation.placement
    loads = Loads(placement, list(placement.brokers))
    for partition, new in plan.targets.items():
        loads.add(partition, placement.partitions[partition].replicas, -1)
        loads.add(partition, new)
    measures = {"replicas": (loads.replicas, 1), "leaders": (loads.leaders, 1), "bytes": (loads.bytes, 0)}
    return [
        name
        for name, (counted, unit) in measures.items()
        if not is_even((counted[broker] for broker in placement.brokers), unit)
    ]
