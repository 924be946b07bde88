"""The checks at the end of a run, when the cluster has recovered from all faults."""

from __future__ import annotations

import hashlib
from typing import Any

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.group import fetch_committed
from barnabas.storage.segment_reader import ColdRead
from barnabas.wire.record_batch import iter_headers
from tools.simulation.checks.invariants import Invariants
from tools.simulation.cluster import Cluster
from tools.simulation.load.clients import Recorder, read_everything
from tools.simulation.load.events import PARTITIONS, TIMESTAMP_TYPE, TOPIC
from tools.soak.checker import Checker


async def check_end(cluster: Cluster, recorder: Recorder, invariants: Invariants) -> None:
    """Read everything back, check what the clients recorded, and compare the replicas of each partition."""
    around = cluster.around
    try:
        async with KafkaClient(cluster.bootstrap_servers) as client:
            recorder.history.final = await read_everything(client, TOPIC, PARTITIONS)
            for (group, partition), offset in sorted(recorder.committed.items()):
                known = await fetch_committed(client, group, [(TOPIC, partition)])
                found = known.get((TOPIC, partition))
                if found is None or found < offset:
                    around.wrong.append(f"{group} committed {offset} of partition {partition}, found {found}")
    except ClientError as error:
        around.wrong.append(f"the end cannot be read: {error}")
        return
    findings = Checker(recorder.history).run()
    for name, witnesses in sorted(findings.anomalies.items()):
        around.wrong.append(f"{name}: {len(witnesses)}, {witnesses[0]}")
    _check_consumed(recorder, around.wrong)
    _check_replicas(cluster, invariants)
    invariants.check_settings(TOPIC, TIMESTAMP_TYPE)
    around.wrong += recorder.wrong
    counts = around.outcome.counts
    counts |= recorder.counts
    counts["acknowledged"] = recorder.acknowledged
    counts["operations"] = findings.operations
    counts["transactions"] = findings.transactions
    counts["commits"] = sum(recorder.committed.values())
    counts["sessions expired"] = around.store.expired
    counts["former sessions ended"] = around.store.taken_over


def _check_consumed(recorder: Recorder, wrong: list[str]) -> None:
    """Check that all records that were read are still there, at the same offsets."""
    final = recorder.history.final or {}
    there = {key: dict(records) for key, records in final.items()}
    for operation in recorder.history.operations():
        for poll in operation.polls():
            for key, records in poll.records.items():
                for offset, value in records:
                    if there[key].get(offset) != value:
                        wrong.append(f"{key}@{offset}={value} was read, and is {there[key].get(offset)} now")
                        return


def _check_replicas(cluster: Cluster, invariants: Invariants) -> None:
    """Check that all replicas of a partition have the same bytes below the lowest high watermark."""
    logs: dict[tuple[str, int], list[Any]] = {}
    for broker in cluster.brokers:
        if broker.server is not None:
            for partition in broker.server.replicas.partitions():
                logs.setdefault((partition.log.topic, partition.log.partition), []).append(partition.log)
    for name, replicas in sorted(logs.items()):
        end = min(log.high_watermark for log in replicas)
        # Each replica compacts its log and deletes old segments independently.
        compacted = max(invariants.compacted.get((*name, bytes(log.topic_id)), 0) for log in replicas)
        start = max(compacted, *(max(log.log_start_offset, log.clean_offset or 0) for log in replicas))
        contents = {_content(log, start, end) for log in replicas}
        if len(contents) > 1:
            cluster.around.wrong.append(f"{name}: replicas differ below {end}")
        cluster.around.tell(f"{name}: {len(replicas)} replicas, high watermark {end}")


def _content(log: Any, offset: int, end: int) -> bytes:
    """A digest of all batches of a log between two offsets."""
    digest = hashlib.sha256()
    while offset < end:
        try:
            data = log.read(offset, 1 << 20)
        except ColdRead as cold:
            data = cold.load()
        for header in iter_headers(data.records):
            offset = header.next_offset
            if offset <= end:
                digest.update(data.records[header.position : header.end_position])
    return digest.digest()
