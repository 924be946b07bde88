"""Plans of moves to other brokers: the present placement, a command's plan for it, and its output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from barnabas.broker.cli.output import ClientError, complain, counted, note, print_table, say, with_client
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import Placement, read_placement
from barnabas.broker.client.placement_plans import Replicas, copied_bytes
from barnabas.broker.client.reassignments import Reassignment, partition_text, reassignments

SHOWN_MAX = 40
"""The number of rows of a plan that are printed; --json has all."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The placement of partitions; for those that are being reassigned, the target."""

    placement: Placement
    moving: Mapping[TopicPartition, Reassignment]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a command: new replicas of partitions, reassignments in progress to wait for, and partitions whose
    preferred replicas are to lead in the end."""

    situation: Situation
    targets: Mapping[TopicPartition, Replicas]
    awaited: Collection[TopicPartition] = ()
    to_elect: Collection[TopicPartition] = ()

    @property
    def elections(self) -> list[TopicPartition]:
        """The partitions that only get another leader."""
        return sorted({*self.to_elect} - {*self.targets, *self.awaited})

    def as_document(self) -> dict[str, Any]:
        """The moves in the form of `--json`: those to begin, and those in progress."""
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


def planned(bootstrap_servers: str, prepare: Callable[[Situation], Plan]) -> Plan:
    """The plan that `prepare` makes for the present state of the cluster. Errors: ClientError."""
    return prepare(with_client(bootstrap_servers, _situation))


async def _situation(client: KafkaClient) -> Situation:
    """Read the state of the cluster. Errors: ClientError."""
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
    """Errors: ClientError if a partition of the plan is being reassigned already."""
    for partition in plan.targets:
        if partition in plan.situation.moving:
            to = ids_text(plan.situation.moving[partition].target)
            topic, index = partition
            raise ClientError(
                f"{partition_text(partition)} is moving to brokers {to} already: wait until it is there, or cancel that"
                f" (barnabas topics reassign {topic}:{index} --cancel)"
            )


def show(plan: Plan, *, is_beside: bool) -> None:
    """Print a plan: on standard output, or on standard error beside a document for programs."""
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
        tell(f"{counted(len(plan.awaited), 'partition')} already moving")


def ids_text(ids: Sequence[int]) -> str:
    """Broker ids as text: `1,2,3`."""
    return ",".join(map(str, ids))


def some_text(partitions: Sequence[TopicPartition]) -> str:
    """The first partition, and the number of the others."""
    more = len(partitions) - 1
    first = partition_text(partitions[0])
    return f"{first} and {more} {'other' if more == 1 else 'others'}" if more else first


def as_arguments(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in the form of command arguments: `flights:0,3 trains:1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return " ".join(f"{topic}:{ids_text(indexes)}" for topic, indexes in by_topic.items())
