"""kafka-broker-api-versions, kafka-cluster, kafka-log-dirs, kafka-delete-records, kafka-transactions."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from compat_tests.java_tools.kafka_tools import of_4_3_only


def test_broker_api_versions(tools: Any) -> None:
    done = tools.run("kafka-broker-api-versions")

    ranges = {
        int(key): (int(first), int(last or first))
        for key, first, last in re.findall(r"\w+\((\d+)\): (\d+)(?: to (\d+))? \[usable: \d+\]", done.out)
    }
    expected = {
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        18,
        19,
        20,
        21,
        22,
        23,
        32,
        33,
        35,
        37,
        42,
        44,
        47,
        60,
        61,
    }
    assert expected <= ranges.keys()
    assert ranges[0] == (0, 13), "librdkafka takes a Produce range that does not start at 0 for an old broker"
    assert ranges[1][1] >= 13, "Fetch with topic ids"
    assert ranges[18][1] >= 3


def test_cluster_id(tools: Any) -> None:
    [line] = tools.run("kafka-cluster", "cluster-id").lines

    assert re.fullmatch(r"Cluster ID: [A-Za-z0-9_-]{22}", line)


def test_arguments_that_a_tool_refuses(tools: Any) -> None:
    refused = tools.run("kafka-cluster", "no-such-command", status=1)

    assert "invalid choice: 'no-such-command'" in " ".join(refused.err.split())
    assert tools.run("kafka-cluster", "cluster-id").lines, "the next tool runs"


@of_4_3_only
def test_endpoints(tools: Any) -> None:
    [endpoint] = tools.table(tools.run("kafka-cluster", "list-endpoints"))

    assert f"{endpoint['HOST']}:{endpoint['PORT']}" == tools.bootstrap_servers
    assert endpoint["STATE"] == "unfenced"
    assert endpoint["ENDPOINT_TYPE"] == "broker"


def test_log_dirs(tools: Any, make_topic: Any, produce: Any, cluster: Any) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [b"x" * 1000], partition=1)

    answer = json.loads(tools.run("kafka-log-dirs", "--describe", "--topic-list", topic).lines[-1])

    [[broker]] = [answer["brokers"]]
    [log_dir] = broker["logDirs"]
    sizes = {partition["partition"]: partition["size"] for partition in log_dir["partitions"]}
    assert log_dir["error"] is None
    assert log_dir["logDir"] == str(cluster.log_dir)
    assert sizes[f"{topic}-0"] == 0
    assert 1000 < sizes[f"{topic}-1"] < 1200
    assert {(each["offsetLag"], each["isFuture"]) for each in log_dir["partitions"]} == {(0, False)}


@pytest.fixture
def offsets_file(tmp_path: Path) -> Any:
    """Write the JSON file that kafka-delete-records wants: partition -> offset before which all goes."""

    def write(topic: str, offsets: dict[int, int]) -> Path:
        partitions = [{"topic": topic, "partition": each, "offset": offset} for each, offset in offsets.items()]
        path = tmp_path / "offsets.json"
        path.write_text(json.dumps({"partitions": partitions, "version": 1}))
        return path

    return write


def test_delete_records(tools: Any, make_topic: Any, produce: Any, offsets_file: Any) -> None:
    topic = make_topic(partitions=2)
    for partition in (0, 1):
        produce(topic, [b"%d" % number for number in range(10)], partition=partition)

    path = offsets_file(topic, {0: 4, 1: -1})
    done = tools.run("kafka-delete-records", "--offset-json-file", path)

    assert f"partition: {topic}-0\tlow_watermark: 4" in done.out
    assert f"partition: {topic}-1\tlow_watermark: 10" in done.out
    assert tools.offsets(topic, "earliest") == {0: 4, 1: 10}
    assert tools.offsets(topic) == {0: 10, 1: 10}
    assert tools.consume(topic, 6, "--from-beginning") == ["4", "5", "6", "7", "8", "9"]


def test_delete_records_beyond_the_end_is_refused(tools: Any, topic: str, produce: Any, offsets_file: Any) -> None:
    produce(topic, [b"x"])

    done = tools.run("kafka-delete-records", "--offset-json-file", offsets_file(topic, {0: 5}))

    assert "OffsetOutOfRangeException" in done.out
    assert tools.offsets(topic, "earliest") == {0: 0}


def test_delete_records_before_the_start_changes_nothing(
    tools: Any, topic: str, produce: Any, offsets_file: Any
) -> None:
    produce(topic, [b"x"] * 4)
    tools.run("kafka-delete-records", "--offset-json-file", offsets_file(topic, {0: 3}))

    again = tools.run("kafka-delete-records", "--offset-json-file", offsets_file(topic, {0: 1}))

    assert f"partition: {topic}-0\tlow_watermark: 3" in again.out


def test_describe_producers(tools: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"x"] * 3, config={"enable.idempotence": True})

    [producer] = tools.table(
        tools.run("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0")
    )

    assert int(producer["ProducerId"]) >= 0
    assert producer["ProducerEpoch"] == "0"
    assert producer["LastSequence"] == "2"
    assert producer["CurrentTransactionStartOffset"] == "None"
