"""Kafka Connect: lines of a file to a topic, a topic to lines of a file."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.waiting import PATIENCE_S, wait_until

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"


def source(path: Path, topic: str) -> dict[str, object]:
    return {"name": "source", "connector.class": SOURCE, "tasks.max": 1, "file": path, "topic": topic}


def sink(path: Path, topic: str) -> dict[str, object]:
    return {"name": "sink", "connector.class": SINK, "tasks.max": 2, "file": path, "topics": topic}


def wait_for_lines(path: Path, count: int) -> list[str]:
    """The lines of a file once there are `count`."""

    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    wait_until(lambda: len(lines()) >= count, lambda: f"{count} lines, not {lines()}")
    assert len(lines()) == count
    return lines()


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def numbered(first: int, end: int) -> list[str]:
    return [f"line {number}" for number in range(first, end)]


@pytest.fixture
def configs_of(cluster: Any) -> Callable[[str], dict[str, str]]:
    """The configs of a topic."""
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    def ask(topic: str) -> dict[str, str]:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        [answer] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return {name: entry.value for name, entry in answer.result(PATIENCE_S).items()}

    return ask


@pytest.mark.full
def test_standalone_from_a_file_through_a_topic_to_a_file(start_worker: Any, topic: str, tmp_path: Path) -> None:
    source_file, sink_file = tmp_path / "in.txt", tmp_path / "out.txt"
    settings = {"offset.storage.file.filename": tmp_path / "offsets"}
    connectors = [source(source_file, topic), sink(sink_file, topic)]
    append(source_file, *numbered(0, 500))

    worker = start_worker(STANDALONE, settings, connectors)
    assert wait_for_lines(sink_file, 500) == numbered(0, 500)
    append(source_file, *numbered(500, 600))
    assert wait_for_lines(sink_file, 600) == numbered(0, 600)
    worker.stop()

    append(source_file, *numbered(600, 610))  # while nobody looks
    start_worker(STANDALONE, settings, connectors)
    assert wait_for_lines(sink_file, 610) == numbered(0, 610)


def distributed_settings(group: str) -> dict[str, object]:
    """A worker's settings with internal topics of its own; a worker that leaves hands its tasks over at once."""
    settings: dict[str, object] = {"group.id": group, "scheduled.rebalance.max.delay.ms": 0}
    settings |= {"offset.storage.partitions": 5, "status.storage.partitions": 3}
    for kind in ("config", "offset", "status"):
        settings |= {f"{kind}.storage.topic": f"{group}-{kind}", f"{kind}.storage.replication.factor": 1}
    return settings


def test_distributed_with_its_three_internal_topics(
    start_worker: Any, topic: str, tmp_path: Path, configs_of: Callable[[str], dict[str, str]]
) -> None:
    group = f"connect-{secrets.token_hex(6)}"
    source_file, sink_file = tmp_path / "in.txt", tmp_path / "out.txt"
    append(source_file, *numbered(0, 300))

    worker = start_worker(DISTRIBUTED, distributed_settings(group))
    worker.start_connector("source", source(source_file, topic))
    worker.start_connector("sink", sink(sink_file, topic))
    assert wait_for_lines(sink_file, 300) == numbered(0, 300)
    for kind in ("config", "offset", "status"):
        assert configs_of(f"{group}-{kind}")["cleanup.policy"] == "compact"

    assert worker.ask("/connectors/sink/pause", "PUT")
    wait_for_state(worker, "sink", "PAUSED")
    worker.stop()
    append(source_file, *numbered(300, 320))
    again = start_worker(DISTRIBUTED, distributed_settings(group))  # what it knows is in the topics
    again.wait_running("source")
    wait_for_state(again, "sink", "PAUSED")
    assert sorted(again.ask("/connectors")) == ["sink", "source"]
    assert again.ask("/connectors/sink/resume", "PUT")
    assert wait_for_lines(sink_file, 320) == numbered(0, 320)

    wait_for_sink_offset(again, topic, 320)
    assert again.ask("/connectors/source", "DELETE")
    assert again.ask("/connectors") == ["sink"]


@pytest.mark.full
def test_two_workers_share_the_work_and_one_takes_over(start_worker: Any, topic: str, tmp_path: Path) -> None:
    group = f"connect-{secrets.token_hex(6)}"
    source_file, sink_file = tmp_path / "in.txt", tmp_path / "out.txt"
    first = start_worker(DISTRIBUTED, distributed_settings(group))
    first.start_connector("source", source(source_file, topic))
    first.start_connector("sink", sink(sink_file, topic))
    second = start_worker(DISTRIBUTED, distributed_settings(group))
    wait_for_workers(second, 2)
    append(source_file, *numbered(0, 200))
    assert wait_for_lines(sink_file, 200) == numbered(0, 200)

    first.stop()
    wait_for_workers(second, 1)
    append(source_file, *numbered(200, 250))

    assert wait_for_lines(sink_file, 250) == numbered(0, 250)


def wait_for_workers(worker: Any, count: int) -> None:
    """Wait until connectors and tasks, all running, are spread over `count` workers."""

    def workers() -> set[str] | None:
        statuses = [worker.ask(f"/connectors/{name}/status") for name in ("source", "sink")]
        if not all(status and status["tasks"] for status in statuses):
            return None
        parts = [part for status in statuses for part in (status["connector"], *status["tasks"])]
        return {part["worker_id"] for part in parts if part["state"] == "RUNNING"}

    wait_until(lambda: len(workers() or ()) == count, lambda: f"{count} workers, but {workers()}")


def wait_for_sink_offset(worker: Any, topic: str, offset: int) -> None:
    """The sink's group has the name of the connector, so it may know topics of other tests too."""
    partition = {"kafka_topic": topic, "kafka_partition": 0}
    expected = {"partition": partition, "offset": {"kafka_offset": offset}}

    def committed() -> list[Any]:
        answer = worker.ask("/connectors/sink/offsets")
        return list(answer["offsets"]) if answer else []

    wait_until(lambda: expected in committed(), lambda: f"the sink's committed offset {offset}, but {committed()}")


def wait_for_state(worker: Any, connector: str, state: str) -> None:
    def states() -> set[str]:
        status = worker.ask(f"/connectors/{connector}/status")
        return {part["state"] for part in (status["connector"], *status["tasks"])} if status else set()

    wait_until(lambda: states() == {state}, lambda: f"{connector} {state}, but {states()}")
