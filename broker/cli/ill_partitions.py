"""`barnabas topics list --under-replicated|--unavailable|--under-min-isr`: the partitions with such a problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from barnabas.broker.cli.output import print_json, print_table, say
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.configs import TOPIC, describe_configs

MIN_ISR = "min.insync.replicas"

UNDER_REPLICATED = "under-replicated"
UNAVAILABLE = "unavailable"
UNDER_MIN_ISR = "under min ISR"

_COLUMNS = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "MIN ISR", "STATE")


async def ill_partitions(client: KafkaClient, wanted: Collection[str]) -> list[dict[str, Any]]:
    """Partitions, including internal topics', that are in one of the `wanted` states, with all of their states."""
    metadata = await client.metadata(None)
    live = {broker.node_id for broker in metadata.brokers}
    topics = sorted((topic for topic in metadata.topics if topic.partitions), key=lambda topic: topic.name or "")
    configs = await describe_configs(client, [(TOPIC, topic.name or "") for topic in topics], [MIN_ISR])
    rows = []
    for topic in topics:
        min_isr = next((int(each.value or 1) for each in configs[TOPIC, topic.name or ""]), 1)
        for part in sorted(topic.partitions, key=lambda part: part.partition_index):
            row: dict[str, Any] = {
                "topic": topic.name,
                "partition": part.partition_index,
                "leader": part.leader_id if part.leader_id in live else None,
                "replicas": part.replica_nodes,
                "isr": part.isr_nodes,
                "min_isr": min_isr,
            }
            row["states"] = states(row)
            if any(state in wanted for state in row["states"]):
                rows.append(row)
    return rows


def states(row: Mapping[str, Any]) -> list[str]:
    """The problems of a partition, as in Kafka's TopicCommand: a partition without a leader is unavailable; one whose
    ISR is smaller than min.insync.replicas takes no records with acks=all, unless it has no more replicas at all."""
    found = {
        UNDER_REPLICATED: len(row["isr"]) < len(row["replicas"]),
        UNAVAILABLE: row["leader"] is None,
        UNDER_MIN_ISR: len(row["isr"]) < row["min_isr"],
    }
    return [name for name, holds in found.items() if holds]


def print_ill_partitions(rows: list[dict[str, Any]], wanted: Collection[str], as_json: bool) -> None:
    """Print partitions with problems as a table, or JSON; one sentence if there are none."""
    if as_json:
        print_json(rows)
    elif not rows:
        say(f"no partition is {' or '.join(wanted)}")
    else:
        cells = [
            (
                row["topic"],
                row["partition"],
                row["leader"],
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["isr"])),
                row["min_isr"],
                ", ".join(row["states"]),
            )
            for row in rows
        ]
        print_table(_COLUMNS, cells)
