"""kafka-consumer-groups and kafka-groups: list, describe, reset-offsets, delete, delete-offsets."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.java_tools.kafka_tools import of_4_3_only

TOPIC_RECORDS = 10


@pytest.fixture
def filled(make_topic: Any, produce: Any) -> str:
    """Two partitions of ten records each, of time 1000, 2000, ... ms after the epoch."""
    topic: str = make_topic(partitions=2)
    for partition in (0, 1):
        for number in range(TOPIC_RECORDS):
            produce(topic, [b"%d" % number], partition=partition, timestamp=(number + 1) * 1000)
    return topic


@pytest.fixture
def committed(tools: Any, filled: str, group: str) -> str:
    """The group, without members, with offset 6 committed for partition 0 and 10 for partition 1 of the topic."""
    tools.run(
        "kafka-consumer-groups", "--reset-offsets", "--group", group, "--topic", filled, "--to-latest", "--execute"
    )
    reset = ["--reset-offsets", "--group", group, "--topic", f"{filled}:0", "--to-offset", 6, "--execute"]
    tools.run("kafka-consumer-groups", *reset)
    return group


@pytest.fixture
def offsets_of(tools: Any) -> Callable[[str], dict[int, int]]:
    """Partition -> committed offset of a group that uses one topic."""

    def read(group: str) -> dict[int, int]:
        rows = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group))
        return {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in rows}

    return read


def commit(consumer: Any, offset: int) -> None:
    """Commit the same offset for each assigned partition of a live member."""
    from confluent_kafka import TopicPartition

    offsets = [TopicPartition(each.topic, each.partition, offset) for each in consumer.assignment()]
    consumer.commit(offsets=offsets, asynchronous=False)


def test_describe_a_group_with_a_member(tools: Any, filled: str, group: str, member: Any) -> None:
    commit(member(group, filled, partitions=2), 4)

    rows = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group))

    assert sorted((row["GROUP"], row["TOPIC"], row["PARTITION"]) for row in rows) == [
        (group, filled, "0"),
        (group, filled, "1"),
    ]
    assert {(row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows} == {("4", "10", "6")}
    assert {row["CLIENT-ID"] for row in rows} == {"member"}
    assert {row["HOST"] for row in rows} == {"/127.0.0.1"}
    assert {row["CONSUMER-ID"].startswith("member-") for row in rows} == {True}


def test_describe_offsets_and_lag_of_a_group_without_members(tools: Any, filled: str, committed: str) -> None:
    done = tools.run("kafka-consumer-groups", "--describe", "--group", committed)

    assert f"Consumer group '{committed}' has no active members." in done.err
    rows = {row["PARTITION"]: row for row in tools.table(done)}
    assert {key: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for key, row in rows.items()} == {
        "0": ("6", "10", "4"),
        "1": ("10", "10", "0"),
    }
    assert {(row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"]) for row in rows.values()} == {("-", "-", "-")}


def test_members_and_their_assignment(tools: Any, filled: str, group: str, member: Any) -> None:
    member(group, filled, partitions=2)

    [plain] = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group, "--members"))
    verbose = tools.run("kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose")

    assert (plain["GROUP"], plain["CLIENT-ID"], plain["#PARTITIONS"]) == (group, "member", "2")
    assert ("(0,1)" if tools.of_3_9 else f"{filled}:0,1") in verbose.out


def test_state(tools: Any, filled: str, committed: str, group: str, member: Any) -> None:
    def state() -> dict[str, str]:
        done = tools.run("kafka-consumer-groups", "--describe", "--group", committed, "--state")
        return {column: done.lines[1][done.lines[0].index(column) :].split()[0] for column in ("STATE", "#MEMBERS")}

    assert state() == {"STATE": "Empty", "#MEMBERS": "0"}
    member(committed, filled, partitions=2)
    assert state() == {"STATE": "Stable", "#MEMBERS": "1"}
    done = tools.run("kafka-consumer-groups", "--describe", "--group", committed, "--state", "--verbose")
    assert tools.bootstrap_servers in done.out
    assert " range " in done.out


def test_list(tools: Any, filled: str, committed: str, member: Any) -> None:
    active = f"{committed}-active"
    member(active, filled, partitions=2)

    every = tools.run("kafka-consumer-groups", "--list").lines
    # A group of another test may have a name that is empty, which is no word of its row.
    rows = {row["GROUP"]: row for row in tools.table(tools.run("kafka-consumer-groups", "--list", "--state"))}
    empty = tools.run("kafka-consumer-groups", "--list", "--state", "empty").out
    classic = tools.run("kafka-consumer-groups", "--list", "--type", "classic").out

    assert {committed, active} <= set(every)
    assert (rows[committed]["STATE"], rows[active]["STATE"]) == ("Empty", "Stable")
    assert committed in empty
    assert active not in empty
    assert active in classic


@of_4_3_only
def test_groups_of_every_kind(tools: Any, filled: str, group: str, member: Any) -> None:
    member(group, filled, partitions=2)

    kinds = tools.table(tools.run("kafka-groups", "--list"))

    assert {"GROUP": group, "TYPE": "Classic", "PROTOCOL": "consumer"} in kinds


def test_all_groups_are_described_at_once(tools: Any, filled: str, committed: str) -> None:
    done = tools.run("kafka-consumer-groups", "--describe", "--all-groups")

    assert sorted(line.split()[:4] for line in done.lines if line.startswith(f"{committed} ")) == [
        [committed, filled, "0", "6"],
        [committed, filled, "1", "10"],
    ]


def test_an_unknown_group_is_an_error(tools: Any, group: str) -> None:
    described = tools.run("kafka-consumer-groups", "--describe", "--group", group)
    deleted = tools.run("kafka-consumer-groups", "--delete", "--group", group)

    if tools.of_3_9:
        assert f"Consumer group '{group}' does not exist." in described.out
    else:
        assert "GroupIdNotFoundException" in described.out
        assert f"Group {group} not found" in described.out
    assert f"Group '{group}' could not be deleted due to: " in deleted.out
    assert "GroupIdNotFoundException" in deleted.out


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 10}),
        (["--to-current"], {0: 6, 1: 10}),
        (["--to-offset", "3"], {0: 3, 1: 3}),
        (["--to-offset", "99"], {0: 10, 1: 10}),
        (["--shift-by", "-2"], {0: 4, 1: 8}),
        (["--shift-by", "2"], {0: 8, 1: 10}),
        (["--to-datetime", "1970-01-01T00:00:04.500Z"], {0: 4, 1: 4}),
        (["--to-datetime", "2020-01-01T00:00:00.000Z"], {0: 10, 1: 10}),
        (["--by-duration", "PT1H"], {0: 10, 1: 10}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_reset_offsets(
    tools: Any, filled: str, committed: str, offsets_of: Any, where: list[str], offsets: dict[int, int]
) -> None:
    reset = ["--reset-offsets", "--group", committed, "--all-topics", *where]
    dry = tools.run("kafka-consumer-groups", *reset, "--dry-run")
    rows = re.findall(rf"{committed}\s+{filled}\s+(\d+)\s+(\d+)", dry.out)  # 3.9.1 prints all of them in one line
    assert {int(partition): int(offset) for partition, offset in rows} == offsets
    assert offsets_of(committed) == {0: 6, 1: 10}

    tools.run("kafka-consumer-groups", *reset, "--execute")
    assert offsets_of(committed) == offsets


def test_reset_of_one_partition_leaves_the_other(tools: Any, filled: str, committed: str, offsets_of: Any) -> None:
    reset = ["--reset-offsets", "--group", committed, "--topic", f"{filled}:1", "--to-earliest", "--execute"]
    tools.run("kafka-consumer-groups", *reset)

    assert offsets_of(committed) == {0: 6, 1: 0}


def test_reset_from_an_exported_file(tools: Any, filled: str, committed: str, offsets_of: Any, tmp_path: Path) -> None:
    reset = ["--reset-offsets", "--group", committed]
    exported = tools.run("kafka-consumer-groups", *reset, "--all-topics", "--to-offset", 2, "--dry-run", "--export")
    assert sorted(exported.lines) == [f"{filled},0,2", f"{filled},1,2"]

    plan = tmp_path / "offsets.csv"
    plan.write_text(exported.out)
    tools.run("kafka-consumer-groups", *reset, "--from-file", plan, "--execute")

    assert offsets_of(committed) == {0: 2, 1: 2}


def test_a_group_reads_on_from_where_it_was_reset_to(tools: Any, filled: str, committed: str) -> None:
    reset = ["--reset-offsets", "--group", committed, "--topic", filled, "--to-offset", 8, "--execute"]
    tools.run("kafka-consumer-groups", *reset)

    assert sorted(tools.consume(filled, 4, "--group", committed)) == ["8", "8", "9", "9"]


def test_an_active_group_is_neither_reset_nor_deleted(tools: Any, filled: str, group: str, member: Any) -> None:
    commit(member(group, filled, partitions=2), 4)

    reset = ["--reset-offsets", "--group", group, "--topic", filled, "--to-earliest", "--execute"]
    not_reset = tools.run("kafka-consumer-groups", *reset)
    not_deleted = tools.run("kafka-consumer-groups", "--delete", "--group", group)
    offsets = tools.run("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", filled)

    assert "can only be reset if the group" in not_reset.out
    assert "the current state is Stable" in not_reset.out
    assert "GroupNotEmptyException" in not_deleted.out
    assert "GroupSubscribedToTopicException" in offsets.out + offsets.err


def test_delete(tools: Any, filled: str, committed: str) -> None:
    done = tools.run("kafka-consumer-groups", "--delete", "--group", committed)

    assert f"Deletion of requested consumer groups ('{committed}') was successful." in done.out
    assert committed not in tools.run("kafka-consumer-groups", "--list").lines


def test_delete_offsets(tools: Any, filled: str, committed: str, offsets_of: Any) -> None:
    done = tools.run("kafka-consumer-groups", "--delete-offsets", "--group", committed, "--topic", f"{filled}:0")

    assert done.out.split()[-3:] == [filled, "0", "Successful"]
    assert offsets_of(committed) == {1: 10}


def test_deleting_a_topic_forgets_its_offsets(tools: Any, filled: str, committed: str) -> None:
    tools.run("kafka-topics", "--delete", "--topic", filled)

    assert filled not in tools.run("kafka-consumer-groups", "--describe", "--group", committed).out
