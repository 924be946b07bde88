"""`barnabas cluster describe`: the brokers, and the state of the partitions."""

from __future__ import annotations

from typing import Any

from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    counted,
    print_json,
    print_table,
    say,
    with_client,
)
from barnabas.broker.client.client import KafkaClient

app = Application(help="Show the cluster.")


@app.callback()
def group() -> None:
    """Without it typer would make the only command the whole group."""


@app.command("describe")
def describe(bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, as_json: AsJson = False) -> None:
    """Show the cluster's id, its brokers, and how many partitions lack a leader or replicas.

    [bold]Examples[/bold]

      barnabas cluster describe
      barnabas cluster describe --json | jq '.brokers[].id'
    """
    cluster = with_client(bootstrap_servers, _describe)
    if as_json:
        print_json(cluster)
        return
    controller = "none" if cluster["controller"] is None else f"broker {cluster['controller']}"
    say(f"cluster {cluster['cluster_id']}, controller {controller}")
    say(
        f"{counted(cluster['topic_count'], 'topic')} with {counted(cluster['partition_count'], 'partition')}:"
        f" {cluster['leaderless_count']} without a leader,"
        f" {cluster['under_replicated_count']} with replicas that are not in sync"
    )
    print_table(
        ("BROKER", "HOST", "PORT", "RACK", "LEADS", "REPLICAS"),
        [
            (broker["id"], broker["host"], broker["port"], broker["rack"], broker["leads"], broker["replicas"])
            for broker in cluster["brokers"]
        ],
    )


async def _describe(client: KafkaClient) -> dict[str, Any]:
    metadata = await client.metadata(None)
    partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    return {
        "cluster_id": metadata.cluster_id,
        "controller": None if metadata.controller_id < 0 else metadata.controller_id,
        "topic_count": len(metadata.topics),
        "partition_count": len(partitions),
        "leaderless_count": sum(partition.leader_id < 0 for partition in partitions),
        "under_replicated_count": sum(len(part.isr_nodes) < len(part.replica_nodes) for part in partitions),
        "brokers": [
            {
                "id": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "leads": sum(partition.leader_id == broker.node_id for partition in partitions),
                "replicas": sum(broker.node_id in partition.replica_nodes for partition in partitions),
            }
            for broker in sorted(metadata.brokers, key=lambda broker: broker.node_id)
        ],
    }
