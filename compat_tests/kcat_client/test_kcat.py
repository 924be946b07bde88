"""Typical commands: kcat's producer, consumer, group member, metadata lister and offset query."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.required import tool_missing
from tools.processes import children

Kcat = Callable[..., str]


def _find_or_install() -> str:
    found = shutil.which("kcat")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        children.run(["apt-get", "install", "-y", "-q", "kcat"], capture_output=True)
        found = shutil.which("kcat")
    if found is None:
        tool_missing("kcat is not installed (Debian: apt-get install kcat)")
    return found


@pytest.fixture(scope="session")
def binary() -> str:
    return _find_or_install()


@pytest.fixture
def kcat(binary: str, cluster: Any) -> Kcat:
    """Run kcat with arguments and standard input; its standard output, or a failed test that shows its complaints."""

    def run(*arguments: str, stdin: str = "") -> str:
        command = [binary, "-b", cluster.bootstrap_servers, *arguments]
        done = children.run(command, input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def read_all(kcat: Kcat, topic: str, *arguments: str) -> list[str]:
    return kcat("-C", "-q", "-e", "-t", topic, *arguments).splitlines()


def test_lines_become_records(kcat: Kcat, topic: str) -> None:
    lines = [f"line {number}" for number in range(100)]
    kcat("-P", "-t", topic, stdin="\n".join(lines))
    assert read_all(kcat, topic) == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(kcat: Kcat, topic: str, acks: str) -> None:
    kcat("-P", "-t", topic, "-X", f"acks={acks}", stdin="a\nb\nc")
    assert read_all(kcat, topic) == ["a", "b", "c"]


def test_an_idempotent_producer(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", stdin="a\nb\nc")
    assert read_all(kcat, topic) == ["a", "b", "c"]


def test_keys_headers_and_tombstones_in_json(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-K", ":", "-Z", "-H", "first=1", "-H", "second=two", stdin="key:value\ngone:\n")
    with_headers, tombstone = (json.loads(line) for line in read_all(kcat, topic, "-J"))
    assert (with_headers["key"], with_headers["payload"]) == ("key", "value")
    assert with_headers["headers"] == ["first", "1", "second", "two"]
    assert (with_headers["offset"], with_headers["partition"], with_headers["tstype"]) == (0, 0, "create")
    assert (tombstone["key"], tombstone["payload"]) == ("gone", None)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(kcat: Kcat, topic: str, codec: str) -> None:
    lines = [f"a line that repeats itself {number}" for number in range(200)]
    kcat("-P", "-t", topic, "-z", codec, stdin="\n".join(lines))
    assert read_all(kcat, topic) == lines


def test_offsets_from_the_start_the_end_and_by_time(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="\n".join(str(number) for number in range(10)))
    assert read_all(kcat, topic, "-o", "7") == ["7", "8", "9"]
    assert read_all(kcat, topic, "-o", "-2") == ["8", "9"]
    assert read_all(kcat, topic, "-o", "beginning", "-c", "3") == ["0", "1", "2"]
    assert read_all(kcat, topic, "-o", "end") == []
    assert read_all(kcat, topic, "-o", "s@1000") == [str(number) for number in range(10)]


def test_query_of_offsets(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="a\nb\nc")
    assert kcat("-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 3"
    assert kcat("-Q", "-t", f"{topic}:0:-2").strip() == f"{topic} [0] offset 0"
    assert kcat("-Q", "-t", f"{topic}:0:1000").strip() == f"{topic} [0] offset 0"


def test_metadata(kcat: Kcat, make_topic: Any) -> None:
    topic = make_topic(partitions=3)
    metadata = json.loads(kcat("-L", "-J", "-t", topic))
    (description,) = metadata["topics"]
    (broker,) = metadata["brokers"]
    assert description["topic"] == topic
    assert sorted(partition["partition"] for partition in description["partitions"]) == [0, 1, 2]
    assert {partition["leader"] for partition in description["partitions"]} == {broker["id"]}
    assert metadata["controllerid"] == broker["id"]
    assert topic in {entry["topic"] for entry in json.loads(kcat("-L", "-J"))["topics"]}


def test_a_topic_is_created_by_producing(kcat: Kcat, topic_name: str) -> None:
    kcat("-P", "-t", topic_name, stdin="first")
    assert read_all(kcat, topic_name) == ["first"]


def test_a_group_resumes_where_it_stopped(kcat: Kcat, topic: str) -> None:
    group = f"kcat-{secrets.token_hex(6)}"
    kcat("-P", "-t", topic, stdin="\n".join(str(number) for number in range(6)))
    earliest = ("-X", "auto.offset.reset=earliest")
    assert kcat("-q", "-e", *earliest, "-G", group, topic).splitlines() == ["0", "1", "2", "3", "4", "5"]
    kcat("-P", "-t", topic, stdin="6\n7")
    assert kcat("-q", "-e", *earliest, "-G", group, topic).splitlines() == ["6", "7"]
