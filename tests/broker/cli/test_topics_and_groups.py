"""`barnabas topics`, `configs`, `groups` and `cluster`, in this process against a broker on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.places import existing_topics
from barnabas.testing import Broker

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


# --- topics and configs --------------------------------------------------------------------------


def test_topics_from_creation_to_deletion(run: Run) -> None:
    assert run("topics", "create", "life", "-p", "3", "-c", "retention.ms=1000").out == "life is created\n"
    again = run("topics", "create", "life")
    assert again.status == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert run("topics", "create", "life", "--if-not-exists").status == 0
    (topic,) = [t for t in run("topics", "list", "--json").json if t["name"] == "life"]
    assert (topic["partition_count"], topic["replication_factor"], topic["internal"]) == (3, 1, False)
    assert "life" in run("topics", "list").out
    assert run("topics", "alter", "life", "-p", "4", "-c", "flush.ms=5", "--delete-config", "retention.ms").status == 0
    (described,) = run("topics", "describe", "life", "--json").json
    assert described["configs"] == {"flush.ms": "5"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2, 3]
    assert described["partitions"][0]["isr"] == [1]
    out = run("topics", "describe", "life").out
    assert "flush.ms = 5" in out
    assert "LEADER" in out
    deleted = run("topics", "delete", "life", "never-there")
    assert deleted.out == "life is deleted\n"
    assert (deleted.status, "UNKNOWN_TOPIC_OR_PARTITION" in deleted.err) == (1, True)
    assert run("topics", "delete", "life", "--if-exists").status == 0
    missing = run("topics", "describe", "life")
    assert (missing.status, missing.err.startswith("barnabas: topic life")) == (1, True)


def test_validate_only_creates_nothing(run: Run) -> None:
    assert run("topics", "create", "maybe", "--validate-only").out == "maybe could be created\n"
    assert run("topics", "describe", "maybe").status == 1
    refused = run("topics", "create", "maybe", "-c", "retention.ms=x")
    assert (refused.status, "INVALID_CONFIG" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("api", "line", "told"),
    [
        ("CreateTopics", ["topics", "create", "late"], "it may still be created"),
        ("DeleteTopics", ["topics", "delete", "late"], "it may still be deleted"),
        ("CreatePartitions", ["topics", "alter", "late", "-p", "9"], "they may still be added"),
        ("IncrementalAlterConfigs", ["configs", "alter", "topic", "late", "-s", "flush.ms=1"], "may still come into"),
    ],
)
def test_a_topic_command_that_timed_out_may_take_effect_later(
    broker: Broker, run: Run, api: Any, line: list[str], told: str
) -> None:
    with broker.faults.fail(api, "REQUEST_TIMED_OUT"):
        done = run(*line)
    assert (done.status, "REQUEST_TIMED_OUT" in done.err, told in done.err) == (1, True, True), done.err


def test_hostile_names_do_not_reach_the_terminal(run: Run) -> None:
    done = run("topics", "create", "a\x1b[2J\nb")
    assert done.status == 1
    assert "\x1b" not in done.err
    assert done.err.count("\n") == 1


def test_configs(run: Run) -> None:
    run("topics", "create", "configured")
    assert (
        run(
            "configs", "alter", "topic", "configured", "--set", "retention.ms=5", "--append", "cleanup.policy=compact"
        ).status
        == 0
    )
    (policy, retention) = [
        c for c in run("configs", "describe", "topic", "configured", "--json").json if not c["is_default"]
    ]
    assert (policy["name"], policy["value"]) == ("cleanup.policy", "delete,compact")
    assert (retention["value"], retention["source"]) == ("5", "topic")
    described = run("configs", "describe", "topic", "configured")
    assert described.err == "31 configs have their defaults: --all shows them\n"
    assert "segment.bytes" in run("configs", "describe", "topic", "configured", "--all", "--documentation").out
    assert (
        run(
            "configs",
            "alter",
            "topic",
            "configured",
            "--delete",
            "retention.ms",
            "--subtract",
            "cleanup.policy=compact",
        ).status
        == 0
    )
    for command in (
        ["configs", "alter", "topic", "configured", "--set", "retention_ms=5"],
        ["topics", "alter", "configured", "--config", "retention_ms=5"],
        ["topics", "create", "misconfigured", "--config", "retention_ms=5"],
    ):
        assert "; did you mean retention.ms?" in run(*command).err, command
    bad = run("configs", "alter", "topic", "configured", "--set", "retention.ms=soon")
    assert (bad.status, "Not a number of type LONG" in bad.err) == (1, True)
    assert run("configs", "alter", "brokers", "--set", "log.retention.ms=7").status == 0
    assert "log.retention.ms" in run("configs", "describe", "brokers").out
    assert run("configs", "alter", "brokers", "--delete", "log.retention.ms").status == 0
    assert "num.partitions" in run("configs", "describe", "broker", "1").out
    assert "root" in run("configs", "describe", "logger", "1").out


@pytest.mark.parametrize(
    ("resource", "key", "meant"),
    [
        (["brokers"], "log_retention_ms", "log.retention.ms"),
        (["broker", "1"], "log.retntion.ms", "log.retention.ms"),
        (["broker", "1"], "listener.name.plaintext.ssl.keystor.location", None),
        (["brokers"], "zzzzzzzz", None),
    ],
)
def test_an_unknown_config_of_a_broker_is_stored_with_a_warning(
    run: Run, resource: list[str], key: str, meant: str | None
) -> None:
    """Kafka's brokers store it for plugins."""
    done = run("configs", "alter", *resource, "--set", f"{key}=5")
    assert (done.status, done.out.endswith(f": {key} changed\n"), done.err.count("\n")) == (0, True, 1)
    assert done.err.startswith(f"barnabas: {key}: no broker is known to have this config: it is stored")
    if meant is not None:
        assert done.err.endswith(f"; did you mean {meant}?\n")
    assert key in run("configs", "describe", *resource).out
    deleted = run("configs", "alter", *resource, "--delete", key)
    assert (deleted.status, deleted.err) == (0, ""), "it was set, so it can be deleted"
    assert key not in run("configs", "describe", *resource).out


@pytest.mark.parametrize("key", ["log.retention.ms", "listener.name.plaintext.max.connections"])
def test_a_known_config_of_a_broker_is_set_without_a_warning(run: Run, key: str) -> None:
    done = run("configs", "alter", "broker", "1", "--set", f"{key}=5")
    assert (done.status, done.err) == (0, "")
    assert run("configs", "alter", "broker", "1", "--delete", key).status == 0


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("configs alter topic deleted-from --delete retention_ms", "retention.ms"),
        ("configs alter topic deleted-from --set flush.ms=5 --delete retention_ms", "retention.ms"),
        ("topics alter deleted-from --partitions 3 --delete-config retention_ms", "retention.ms"),
        ("configs alter brokers --delete log_retention_ms", "log.retention.ms"),
        ("configs alter broker 1 --delete log.retntion.ms", "log.retention.ms"),
    ],
)
def test_an_unknown_config_cannot_be_deleted(run: Run, command: str, meant: str) -> None:
    """Brokers would accept it, and nothing would change."""
    run("topics", "create", "deleted-from", "--if-not-exists")
    before = run("topics", "describe", "deleted-from", "--json").json
    done = run(*command.split())
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.endswith(f" {command.split()[-1]}; did you mean {meant}?\n")
    assert run("topics", "describe", "deleted-from", "--json").json == before


def test_a_known_config_is_deleted_where_it_is_not_set(run: Run) -> None:
    run("topics", "create", "never-set")
    assert run("configs", "alter", "topic", "never-set", "--delete", "retention.ms").status == 0
    missing = run("configs", "alter", "topic", "nowhere", "--delete", "retention_ms")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.err


def test_commands_that_change_something_have_json_output(run: Run) -> None:
    """Failures are in the list and on standard error, and the status is 1 where there is one."""
    assert run("topics", "create", "told", "--json").json == [{"topic": "told", "created": True, "error": None}]
    assert run("topics", "create", "new", "--validate-only", "--json").json[0]["created"] is False
    again = run("topics", "create", "told", "other", "--json")
    assert again.status == 1
    assert [(each["topic"], each["created"], each["error"]) for each in again.json] == [
        ("told", False, "cannot create told: Topic 'told' already exists. (TOPIC_ALREADY_EXISTS)"),
        ("other", True, None),
    ]
    assert again.err == "barnabas: cannot create told: Topic 'told' already exists. (TOPIC_ALREADY_EXISTS)\n"
    altered = run("topics", "alter", "told", "-p", "3", "-c", "flush.ms=9", "--json")
    assert [each["changed"] for each in altered.json] == ["partitions", "configs"]
    set_again = run("configs", "alter", "topic", "told", "--set", "flush.ms=8", "--delete", "segment.ms", "--json")
    assert set_again.json == [{"kind": "topic", "name": "told", "changed": ["flush.ms", "segment.ms"], "error": None}]
    deleted = run("topics", "delete", "told", "never", "--json")
    assert (deleted.status, [each["deleted"] for each in deleted.json]) == (1, [True, False])


def test_more_replicas_than_brokers(run: Run) -> None:
    done = run("topics", "create", "thrice", "-r", "3")
    assert done.status == 1
    assert done.err.endswith("(INVALID_REPLICATION_FACTOR); the cluster has 1 broker\n")


def test_alter_does_all_or_nothing(run: Run) -> None:
    run("topics", "create", "whole", "-p", "1")
    for options in (["-p", "2", "-c", "retention.ms=soon"], ["-p", "1", "-c", "retention.ms=5"]):
        done = run("topics", "alter", "whole", *options)
        assert (done.status, done.out) == (1, "")
    (described,) = run("topics", "describe", "whole", "--json").json
    assert (described["partition_count"], described["configs"]) == (1, {})


@pytest.mark.parametrize("command", ["topics describe", "topics offsets", "topics sizes", "consume"])
def test_a_mistyped_topic_is_told_which_was_meant(run: Run, command: str) -> None:
    run("topics", "create", "well-spelt")
    done = run(*command.split(), "wel-spelt")
    assert (done.status, done.out) == (1, "")
    expected = "There is no topic of this name; did you mean well-spelt? (UNKNOWN_TOPIC_OR_PARTITION)"
    assert done.err == f"barnabas: topic wel-spelt: {expected}\n"
    assert "; did you" not in run(*command.split(), "zzzzzzzzzz").err


def test_offsets(run: Run) -> None:
    run("topics", "create", "measured", "-p", "2")
    run("produce", "measured", "-p", "1", "--timestamp", "2001-01-01T00:00Z", stdin=b"a\nb\n")
    run("produce", "measured", "-p", "1", "--timestamp", "2002-01-01T00:00Z", stdin=b"c\n")
    table = run("topics", "offsets", "measured").out.split()
    assert table == ["TOPIC", "PARTITION", "EARLIEST", "LATEST", "measured", "0", "0", "0", "measured", "1", "0", "3"]
    found = run("topics", "offsets", "measured:1", "--from-time", "2001-06-01", "--json").json
    assert found == [{"topic": "measured", "partition": 1, "earliest": 0, "latest": 3, "from_time": 2}]
    assert run("topics", "offsets", "measured:7").err == "barnabas: measured has no partition 7: they are 0 to 1\n"
    assert run("topics", "offsets", "measured:x").status == 2
    assert run("topics", "offsets", "missing").status == 1


def test_sizes(broker: Broker, run: Run) -> None:
    run("topics", "create", "heavy", "-p", "3")
    run("produce", "heavy", "-p", "2", stdin=b"x" * 5_000)
    (heavy,) = run("topics", "sizes", "heavy", "--json").json
    by_partition = [each["bytes"] for each in heavy["partitions"]]
    assert by_partition[:2] == [0, 0]
    assert 5_000 < by_partition[2] == heavy["bytes"] < 5_200
    assert {(each["broker"], each["directory"]) for each in heavy["partitions"]} == {(1, str(broker.data_dir))}
    lines = run("topics", "sizes").out.splitlines()
    assert lines[0].split() == ["TOPIC", "REPLICAS", "BYTES", "LARGEST", "REPLICA"]
    assert ["heavy", "3", str(heavy["bytes"]), str(heavy["bytes"])] in [line.split() for line in lines]
    assert run("topics", "sizes", "missing").status == 1


def test_delete_records(run: Run) -> None:
    run("topics", "create", "shrinking", "-p", "2")
    run("produce", "shrinking", "-p", "0", "--timestamp", "2001-01-01", stdin=b"0\n1\n2\n3\n4\n")
    run("produce", "shrinking", "-p", "0", "--timestamp", "2003-01-01", stdin=b"5\n6\n7\n8\n9\n")
    read = ["consume", "shrinking", "-o", "earliest", "-e", "-f", "{value}"]
    done = run("topics", "delete-records", "shrinking:0", "--before", "2")
    assert done.out.split() == ["TOPIC", "PARTITION", "OLD", "EARLIEST", "EARLIEST", "shrinking", "0", "0", "2"]
    assert run(*read).out == "23456789"
    assert run("topics", "delete-records", "shrinking", "--before-time", "2002-01-01", "--json").json == [
        {"topic": "shrinking", "partition": 0, "old_earliest": 2, "earliest": 5, "error": None},
        {"topic": "shrinking", "partition": 1, "old_earliest": 0, "earliest": 0, "error": None},
    ]
    assert run(*read).out == "56789"
    beyond = run("topics", "delete-records", "shrinking", "--before", "11")
    assert beyond.err == "barnabas: nothing was deleted: shrinking-0 ends at 10, shrinking-1 ends at 0\n"
    assert run("topics", "delete-records", "shrinking", "--before", "-1").status == 0
    assert run(*read).out == "9"
    assert run("topics", "delete-records", "shrinking", "--before", "latest").status == 0
    assert run(*read).out == ""
    assert run("topics", "delete-records", "shrinking").status == 2
    run("topics", "create", "compacted", "-c", "cleanup.policy=compact")
    refused = run("topics", "delete-records", "compacted:0", "--before", "0", "--json")
    assert (refused.status, refused.json[0]["earliest"]) == (1, None)
    assert "POLICY_VIOLATION" in refused.json[0]["error"]
    assert refused.err.startswith("barnabas: cannot delete records of compacted-0: ")


def test_cluster_describe(broker: Broker, run: Run) -> None:
    run("topics", "create", "counted", "-p", "2")
    cluster = run("cluster", "describe", "--json").json
    (described,) = cluster["brokers"]
    host, port = broker.bootstrap_servers.split(":")
    assert (described["id"], described["host"], described["port"]) == (1, host, int(port))
    assert described["leads"] == described["replicas"] == cluster["partition_count"] >= 2
    assert (cluster["controller"], cluster["leaderless_count"], cluster["under_replicated_count"]) == (1, 0, 0)
    out = run("cluster", "describe").out
    assert f"cluster {cluster['cluster_id']}, controller broker 1\n" in out
    assert out.splitlines()[-1].split()[:3] == ["1", host, port]


# --- groups --------------------------------------------------------------------------------------


def test_groups(run: Run) -> None:
    run("topics", "create", "grouped", "-p", "2")
    run("produce", "grouped", "-p", "0", stdin=b"1\n2\n3\n")
    read = run("consume", "grouped", "-g", "readers", "--from-beginning", "-n", "2")
    assert read.out == "1\n2\n"
    assert {"group": "readers", "state": "Empty", "protocol_type": "consumer"} in run("groups", "list", "--json").json
    assert "readers" in run("groups", "list").out
    (group,) = run("groups", "describe", "readers", "--json").json
    assert group["offsets"][0] == {"topic": "grouped", "partition": 0, "offset": 2, "end_offset": 3, "lag": 1}
    assert "LAG" in run("groups", "describe", "readers").out
    # Goes on where it stopped.
    assert run("consume", "grouped", "-g", "readers", "-n", "1").out == "3\n"
    dry = run("groups", "reset-offsets", "readers", "-t", "grouped:0", "--to-earliest")
    assert "nothing was changed" in dry.err
    assert run("consume", "grouped", "-g", "readers", "--timeout-ms", "500").out == ""
    for option, expected in (
        (["--to-earliest"], 0),
        (["--to-latest"], 3),
        (["--to-offset", "99"], 3),
        (["--shift-by", "-2"], 1),
        (["--to-datetime", "2001-01-01T00:00:00"], 0),
        (["--to-datetime", "2101-01-01T00:00:00"], 3),
    ):
        rows = run("groups", "reset-offsets", "readers", "-t", "grouped:0", *option, "--execute", "--json").json
        assert [row["new_offset"] for row in rows] == [expected], option
    assert run("groups", "delete", "readers").out == "group readers is deleted\n"
    assert run("groups", "delete", "readers").status == 1
    assert run("groups", "describe", "readers").err == "barnabas: group readers does not exist\n"
    assert run("groups", "reset-offsets", "readers", "-t", "grouped:7", "--to-latest").status == 1


@pytest.fixture
def settled(run: Run) -> str:
    """A group with offset 3 in `settled-0`, 0 in `settled-1` and 2 in `settled-too-0`."""
    for topic, text in (("settled", b"1\n2\n3\n"), ("settled-too", b"4\n5\n")):
        run("topics", "create", topic, "-p", "2", "--if-not-exists")
        if run("topics", "offsets", f"{topic}:0", "--json").json[0]["latest"] == 0:
            run("produce", topic, "-p", "0", "-q", stdin=text)
    run("groups", "reset-offsets", "settled", "-t", "settled", "-t", "settled-too:0", "--to-latest", "--execute")
    return "settled"


def moved(done: Any) -> list[tuple[str, int, int, int]]:
    return [(each["topic"], each["partition"], each["old_offset"], each["new_offset"]) for each in done.json]


def test_reset_offsets_says_that_it_makes_a_group(run: Run, settled: str) -> None:
    """As Kafka's own tool makes it, without a word."""
    reset = ["groups", "reset-offsets", "mistyped", "-t", "settled", "--to-earliest"]
    told = "barnabas: group mistyped does not exist yet: committing these offsets creates it\n"
    only_shown = run(*reset)
    assert (only_shown.status, only_shown.err) == (0, f"{told}barnabas: nothing was changed: add --execute to do it\n")
    assert "mistyped" not in run("groups", "list").out
    done = run(*reset, "--execute")
    assert (done.status, done.err) == (0, told)
    assert "mistyped" in run("groups", "list").out
    assert run(*reset, "--execute").err == ""


def test_reset_offsets_of_all_topics(run: Run, settled: str) -> None:
    done = run("groups", "reset-offsets", settled, "--all-topics", "--shift-by", "-1", "--execute", "--json")
    assert moved(done) == [("settled", 0, 3, 2), ("settled", 1, 0, 0), ("settled-too", 0, 2, 1)]
    assert done.err == "barnabas: settled-1 begins at 0: that is taken instead of -1\n"
    done = run("groups", "reset-offsets", settled, "--all-topics", "--to-datetime", "-1h", "--execute", "--json")
    assert moved(done) == [("settled", 0, 2, 0), ("settled", 1, 0, 0), ("settled-too", 0, 1, 0)]
    nobody = run("groups", "reset-offsets", "nobody", "--all-topics", "--to-earliest")
    assert nobody.err == "barnabas: group nobody has no offsets: name topics with --topic\n"
    assert run("groups", "reset-offsets", settled, "--all-topics", "-t", "settled", "--to-latest").status == 2


def test_reset_offsets_tells_where_it_moves_to_an_end(run: Run, settled: str) -> None:
    done = run("groups", "reset-offsets", settled, "-t", "settled", "--to-offset", "2", "--json")
    assert moved(done) == [("settled", 0, 3, 2), ("settled", 1, 0, 0)]
    assert done.err.splitlines() == [
        "barnabas: settled-1 ends at 0: that is taken instead of 2",
        "barnabas: nothing was changed: add --execute to do it",
    ]
    assert [each["executed"] for each in done.json] == [False, False]
    last = run("groups", "reset-offsets", settled, "-t", "settled:0", "--to-offset", "-1", "--json")
    assert moved(last) == [("settled", 0, 3, 2)]
    done = run("groups", "reset-offsets", settled, "-t", "settled:0", "--to-offset", "1", "--json", "--execute")
    assert [each["executed"] for each in done.json] == [True]


def test_reset_offsets_says_what_it_cannot_do_before_it_starts(broker: Broker, run: Run, settled: str) -> None:
    missing = run("groups", "reset-offsets", settled, "-t", "settled", "-t", "gone", "--to-earliest", "--execute")
    assert (missing.status, missing.err.startswith("barnabas: topic gone: ")) == (1, True)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": settled})
    consumer.subscribe(["settled"])
    broker.wait_group(settled, "Stable", members=1)
    for options in ([], ["--execute"]):
        busy = run("groups", "reset-offsets", settled, "-t", "settled", "--to-earliest", *options)
        assert busy.err == "barnabas: group settled has members: stop them before moving its offsets\n"
    consumer.close()
    assert [row["offset"] for row in run("groups", "describe", settled, "--json").json[0]["offsets"]] == [3, 0, 2]


def test_groups_are_deleted_as_json(run: Run, settled: str) -> None:
    done = run("groups", "delete", settled, "nobody", "--json")
    assert (done.status, [each["deleted"] for each in done.json]) == (1, [True, False])


def test_existing_topics_returns_existing_names_only(broker: Broker, run: Run) -> None:
    run("topics", "create", "there")

    async def work() -> set[str]:
        async with KafkaClient(broker.bootstrap_servers) as client:
            return await existing_topics(client, {"there", "not-there"})

    assert asyncio.run(work()) == {"there"}
