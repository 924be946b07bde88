"""`barnabas produce` and `barnabas consume`, in this process against a broker on a thread."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.broker.cli.values import moment_ms
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing import Broker, Cluster
from tests.support.required import tool_missing
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


class FilesOfADisk(UnsyncedFiles):
    """With so much room as `room_bytes` says."""

    room_bytes = 1 << 40

    def free_bytes(self, path: str) -> int:
        return self.room_bytes


def test_produce_names_the_error_that_stops_its_records() -> None:
    """And tried again until it works, without a word more. Here the disk is full."""
    files = FilesOfADisk()
    with Broker(files=files) as full:
        files.room_bytes = 0
        full.restart()
        command = [sys.executable, "-m", "barnabas", "produce", "patient", "-b", full.bootstrap_servers]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write("one\n")
            process.stdin.close()
            told = process.stderr.readline()
            files.room_bytes = 1 << 40
            rest = process.stderr.read()
    assert re.fullmatch(
        r"barnabas: cannot write to partition 0 of patient: The disk of patient-0 at broker 1 is full\. "
        r"\(KAFKA_STORAGE_ERROR\); trying for another 11\d s\n",
        told,
    )
    assert (process.returncode, re.sub(r"\d+\.\d\d", "N", rest)) == (0, "1 record to patient in N s\n")


@pytest.mark.live
def test_a_member_tells_what_its_coordinator_waits_for() -> None:
    with Cluster(1, offsets_topic_replication_factor=3) as cluster:
        cluster.create_topic("t").produce("one")
        command = [sys.executable, "-m", "barnabas", "consume", "t", "-g", "g", "-b", cluster.bootstrap_servers]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            told = process.stderr.readline()
            process.terminate()
            rest = process.stderr.read()
    assert told == (
        "barnabas: cannot find the coordinator of group g: Consumer groups wait: __consumer_offsets is to have 3 "
        "replicas, alive brokers: 1 (a smaller cluster sets offsets.topic.replication.factor=1) "
        "(COORDINATOR_NOT_AVAILABLE); trying again until it works\n"
    )
    assert rest == ""


def test_lines_become_records_and_lines_again(run: Run) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    done = run("produce", "lines", "--partition", "0", stdin=lines.encode())
    assert done.err.startswith("100 records to lines in")
    assert run("consume", "lines", "--from-beginning", "-n", "100").out == lines
    assert run("consume", "lines", "--from-beginning", "--timeout-ms", "300", "-p", "1").out == ""
    assert run("consume", "lines", "--from-beginning", "-n", "0").out == ""


def test_files_of_any_kind(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\xff\xfe\r\nlast \x00 without end")
    assert run("produce", "binary", str(path), "-p", "0", "-q", "-z", "gzip").err == ""
    records = [
        json.loads(line) for line in run("consume", "binary", "--from-beginning", "-n", "2", "--json").out.splitlines()
    ]
    assert [record["value"] for record in records] == [{"base64": "//4="}, "last \x00 without end"]
    missing = run("produce", "binary", str(tmp_path / "missing"))
    assert (missing.status, "cannot read" in missing.err) == (1, True)


def test_keys_headers_and_nulls(run: Run) -> None:
    done = run(
        "produce", "pairs", "-p", "0", "-k", "::", "--header", "all=x", "--parse-headers", "--null-value", "NULL",
        stdin=b"a:1,b:\tk1::v1\n\tk2::NULL\n",
    )  # fmt: skip
    assert done.status == 0
    template = r"{topic}-{partition}@{offset}\t{key}={value} {headers}\n"
    assert run("consume", "pairs", "--from-beginning", "-n", "2", "-f", template).out == (
        "pairs-0@0\tk1=v1 all:x,a:1,b:\npairs-0@1\tk2=null all:x\n"
    )
    first, second = map(json.loads, run("consume", "pairs", "--from-beginning", "-n", "2", "--json").out.splitlines())
    assert first["headers"] == [["all", "x"], ["a", "1"], ["b", ""]]
    assert (second["key"], second["value"], second["timestamp_type"]) == ("k2", None, "CreateTime")


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        (["-k", ":"], b"ok:1\nnone\n", "line 2 has no key separator ':'"),
        (["--parse-headers"], b"none\n", "line 1 has no tab"),
        (["--parse-headers"], b"a,b\tx\n", "is not NAME:VALUE"),
        (["-p", "99"], b"x\n", "barnabas: bad-lines has no partition 99: they are 0 to 1; 0 records were acknowledged"),
    ],
)
def test_bad_lines(run: Run, options: list[str], line: bytes, expected: str) -> None:
    done = run("produce", "bad-lines", *options, stdin=line)
    assert done.status == 1
    assert expected in done.err


def test_separators_and_formats_know_the_same_escapes(run: Run) -> None:
    run("topics", "create", "escaped", "-p", "1")
    for separator, line in [
        (r"\t", b"a\t1"),
        (r"\x1f", b"b\x1f2"),
        (r"\xff", b"c\xff3"),
        (r"\\t", b"d\\t4"),
        ("\\", b"e\\5"),
    ]:
        assert run("produce", "escaped", "-q", "-k", separator, stdin=line + b"\n").status == 0, separator
    read = run("consume", "escaped", "-o", "earliest", "-e", "-f", r"{key}\t{value}\x2f\\n\d\n").out
    assert read == "".join(f"{key}\t{value}/\\n\\d\n" for key, value in ["a1", "b2", "c3", "d4", "e5"])
    assert run("produce", "escaped", "-k", r"\t", stdin=b"x y\n").err.startswith(
        r"barnabas: line 1 has no key separator '\t'"
    )


def test_lines_before_a_bad_line_are_written_and_counted(run: Run) -> None:
    run("topics", "create", "until-bad", "-p", "1")
    done = run("produce", "until-bad", "-k", "=", stdin=b"a=1\nb=2\nc\nd=4\n")
    assert done.err == "barnabas: line 3 has no key separator '='; 2 records were acknowledged\n"
    assert run("consume", "until-bad", "-o", "earliest", "-e", "-f", "{key}={value}\\n").out == "a=1\nb=2\n"


def test_keys_and_times_of_all_records(run: Run) -> None:
    run("topics", "create", "keyed", "-p", "1")
    assert (
        run("produce", "keyed", "--key", "k\udcff", "--timestamp", "2001-09-09T01:46:40Z", stdin=b"x\ny\n").status == 0
    )
    documents = [
        json.loads(line) for line in run("consume", "keyed", "-o", "earliest", "-e", "--json").out.splitlines()
    ]
    assert [each["value"] for each in documents] == ["x", "y"]
    assert {(each["key"]["base64"], each["timestamp"]) for each in documents} == {("a/8=", 1_000_000_000_000)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--key", "a", "-k", ":"], "choose one of --key and --key-separator"),
        (["--key", "a", "--json"], "--json lines contain keys, nulls and headers"),
        (["--timestamp", "now"], "'now' is no time"),
        (["--compression", "brotli"], "'none', 'gzip', 'snappy', 'lz4', 'zstd'"),
        (["--key-separator", ""], "the separator is empty"),
        (["--header", "name:value"], "'name:value' is not NAME=VALUE"),
    ],
)
def test_produce_refuses_wrong_options(run: Run, options: list[str], expected: str) -> None:
    done = run("produce", "digits", *options)
    assert (done.status, done.out) == (2, "")
    assert expected in " ".join(done.err.replace("│", " ").split())


def test_too_large_records_are_refused_with_a_reason(run: Run) -> None:
    run("topics", "create", "small", "-c", "max.message.bytes=100")
    done = run("produce", "small", stdin=b"x" * 1_000)
    assert (done.status, "MESSAGE_TOO_LARGE" in done.err) == (1, True)
    assert done.err.endswith("; 0 records were acknowledged\n")


def test_consume_a_topic_that_does_not_exist(run: Run) -> None:
    done = run("consume", "never-created", "-n", "1")
    assert (done.status, done.err.startswith("barnabas: topic never-created")) == (1, True)


# --- where reading begins and ends ---------------------------------------------------------------


@pytest.fixture
def digits(broker: Broker, run: Run) -> str:
    """A topic with 0 to 9 in partition 0, a second apart from 1,000 s on, and a to c in partition 1."""
    topic = "digits"
    if topic not in [each["name"] for each in run("topics", "list", "--json").json]:
        run("topics", "create", topic, "-p", "2")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce(topic, str(number), partition=0, timestamp=1_000_000 + number * 1_000)
        assert producer.flush(PATIENCE_S) == 0
        assert run("produce", topic, "-p", "1", "-q", stdin=b"a\nb\nc\n").status == 0
    return topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-o", "earliest"], "0123456789"),
        (["--from-beginning"], "0123456789"),
        (["--offset", "7"], "789"),
        (["--offset", "-2"], "89"),
        (["--offset=-99"], "0123456789"),
        (["--offset", "latest"], ""),
        ([], ""),
        (["--from-time", "1003001"], "456789"),
        (["--from-time", "1970-01-01T00:16:46Z"], "6789"),
        (["--from-time", "1970-01-01T01:16:46+01:00"], "6789"),
        (["--from-time", "-1h"], ""),
        (["--offset", "3", "-n", "2"], "34"),
    ],
)
def test_the_from_option_sets_the_first_offset(run: Run, digits: str, options: list[str], expected: str) -> None:
    done = run("consume", digits, "-p", "0", "--exit-at-end", "-f", "{value}", *options)
    assert (done.status, done.out, done.err) == (0, expected, "")


def test_an_offset_that_a_partition_does_not_have_is_told(run: Run, digits: str) -> None:
    done = run("consume", digits, "-e", "-f", "{value}", "-o", "8")
    assert (done.status, done.out) == (0, "89")
    assert done.err == "barnabas: digits-1 ends at 3: that is taken instead of 8\n"


def test_partitions_may_be_chosen(run: Run, digits: str) -> None:
    assert run("consume", digits, "-e", "-f", "{value}", "-o", "earliest", "-p", "1").out == "abc"
    both = run("consume", digits, "-e", "-f", "{value}", "-o", "earliest", "-p", "1", "-p", "0").out
    assert sorted(both) == sorted("0123456789abc")
    assert run("consume", digits, "-e", "-p", "2").err == "barnabas: digits has no partition 2: they are 0 to 1\n"


def test_topics_that_lack_a_partition_are_named(run: Run, digits: str) -> None:
    assert run("topics", "create", "wide", "-p", "3").status == 0
    one = run("consume", "wide", digits, "-e", "-p", "2")
    assert (one.status, one.out, one.err) == (1, "", "barnabas: digits has no partition 2: they are 0 to 1\n")
    both = run("consume", "wide", digits, "-e", "-p", "9", "-p", "0")
    assert (both.status, both.out) == (1, "")
    assert both.err == (
        "barnabas: digits has no partition 9: they are 0 to 1; wide has no partition 9: they are 0 to 2\n"
    )


def test_a_group_uses_its_committed_offsets_before_the_option(run: Run, digits: str) -> None:
    read = ["consume", digits, "-g", "digit-readers", "-e", "-f", "{value}"]
    first = run(*read, "-o", "-2")
    assert (sorted(first.out), first.err) == (sorted("89bc"), "")
    for chosen in (["-o", "earliest"], ["--from-beginning"], ["--from-time", "-1h"]):
        again = run(*read, *chosen)
        assert again.out == ""
        assert again.err == (
            "barnabas: group digit-readers has committed offsets, and goes on from them; "
            "`barnabas groups reset-offsets` moves them\n"
        )
    assert run(*read).err == ""
    groups = run("groups", "describe", "digit-readers", "--json").json
    assert [row["offset"] for row in groups[0]["offsets"]] == [10, 3]


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_the_end_is_that_of_what_may_be_read(broker: Broker, run: Run, isolation_level: str) -> None:
    """An open transaction holds back who reads what is committed; they end before it."""
    topic = f"open-{isolation_level}"
    run("topics", "create", topic, "-p", "1")
    run("produce", topic, "-q", stdin=b"before\n")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(PATIENCE_S) == 0
    done = run("consume", topic, "-e", "-o", "earliest", "--isolation-level", isolation_level)
    assert done.out == ("before\n" if isolation_level == "read_committed" else "before\nopen\n")
    producer.abort_transaction(PATIENCE_S)
    # The last offset is a marker, which nobody sees.
    assert run("consume", topic, "-e", "-o", "earliest", "--isolation-level", "read_committed").out == "before\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-o", "3", "--from-beginning"], "choose one of --from-beginning, --offset and --from-time"),
        (["-o", "end"], "'end' is no offset: expected a number, -N for N before the end, earliest or latest"),
        (["--from-time", "yesterday"], "'yesterday' is no time: expected 2026-01-31T12:00"),
        (["-f", "%k %v"], "'%k %v' has no field of a record: {topic} {partition} {offset}"),
        (["-f", "{key} {value"], "'{value' lacks its closing brace"),
        (["-f", "{key} {"], "'{' lacks its closing brace"),
        (["-f", "{value} {offfset}"], "records have no {offfset}, only {topic} {partition} {offset}"),
        (["--isolation-level", "serializable"], "read_committed"),
        (["-g", "g", "-p", "0"], "members of a group do not choose partitions"),
    ],
)
def test_consume_refuses_wrong_options(run: Run, options: list[str], expected: str) -> None:
    done = run("consume", "digits", *options)
    assert (done.status, done.out) == (2, "")
    assert expected in " ".join(done.err.replace("│", " ").split())


def test_moments() -> None:
    assert moment_ms("0") == 0
    assert moment_ms("1700000000123") == 1_700_000_000_123
    assert moment_ms("2023-11-14T22:13:20.123Z") == 1_700_000_000_123
    assert moment_ms("2023-11-14 23:13:20+01:00") == 1_700_000_000_000
    assert moment_ms("-90s", now_ms=100_000) == 10_000
    assert [moment_ms(f"-1{unit}", now_ms=10**12) for unit in ("ms", "s", "m", "h", "d", "w")] == [
        10**12 - each for each in (1, 1_000, 60_000, 3_600_000, 86_400_000, 604_800_000)
    ]
    assert moment_ms("-9999999999w", now_ms=5) == 0


def test_the_comparison_with_kcat_runs() -> None:
    if shutil.which("kcat") is None:
        tool_missing("kcat is not installed (Debian: apt-get install kcat)")
    command = [sys.executable, "-m", "benchmarks.consume_speed", "--records", "1234", "--rounds", "1"]
    out = children.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"(?:(?:barnabas|kcat): \d+\.\d\d s passed, \d+\.\d\d s computed, 1234 records\n){2}", out)


def test_one_record_is_one_record(run: Run) -> None:
    assert run("produce", "single", stdin=b"x").err.startswith("1 record to single in ")
    assert run("produce", "single", "--json", stdin=b"x").err.endswith("; 0 records were acknowledged\n")
