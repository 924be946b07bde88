"""SIGTERM and Ctrl-C, which the whole process group of a program hears: a clean stop, no traceback, nothing left."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark_examples import sample
from compat_tests.conftest import ROOT
from compat_tests.spark.pipelines.conftest import Program, commits
from tools.processes import children
from tools.waiting import wait_until


@pytest.fixture
def word_count(cluster: Any, start_program: Callable[..., Program], topic_prefix: str, tmp_path: Path) -> Program:
    """A pipeline that goes on until it is stopped."""
    topics = [f"{topic_prefix}-lines", f"{topic_prefix}-words"]
    sample.create_topics(cluster.bootstrap_servers, *topics)
    sample.produce(cluster.bootstrap_servers, topics[0], [sample.Sample("to be or not to be")])
    return start_program(
        "stream_wordcount", f"--bootstrap-servers={cluster.bootstrap_servers}", f"--checkpoint={tmp_path}/words",
        f"--input-topic={topics[0]}", f"--output-topic={topics[1]}",
    )  # fmt: skip


def has_java(program: Program) -> bool:
    """Whether Spark's Java runs, no longer the scripts that start it."""
    return any(map(is_java_of_spark, program.processes()))


def is_java_of_spark(process: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        is_java = Path(os.readlink(f"/proc/{process}/exe")).name == "java"
        return is_java and b"org.apache.spark.launcher.Main" not in command and b"pyspark-shell" in command
    return False


def nothing_of_it_is_left(program: Program) -> bool:
    return program.processes() == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_java_starts(word_count: Program, number: signal.Signals) -> None:
    word_count.wait_until(lambda: has_java(word_count))

    word_count.send_to_group(number)

    assert word_count.wait() == 0, word_count.log()
    assert word_count.log().splitlines()[-1] == "Interrupted. Run the same command again to go on from here."
    assert "Traceback" not in word_count.log()
    wait_until(lambda: nothing_of_it_is_left(word_count))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_while_it_works(word_count: Program, number: signal.Signals, tmp_path: Path) -> None:
    word_count.wait_until(lambda: commits(tmp_path / "words" / "word-counts"))

    word_count.send_to_group(number)

    assert word_count.wait() == 0, word_count.log()
    assert "Stopping after this micro-batch" in word_count.log()
    assert re.search(r"word-counts: 1 rows in \d+ batch", word_count.log())
    assert "Traceback" not in word_count.log()
    wait_until(lambda: nothing_of_it_is_left(word_count))


INTERRUPTED_AT_AN_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["-m"]  # what Python has there while it imports the package of a module that is to be run
runpy.run_module("barnabas.spark_examples.stream_wordcount", run_name="__main__", alter_sys=True)
"""


def test_while_it_is_imported() -> None:
    ended = children.run(
        [sys.executable, "-c", INTERRUPTED_AT_AN_IMPORT], cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_demonstration(number: signal.Signals) -> None:
    """Its broker ends with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas.spark_examples.demo", "--days", "1"], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("A Barnabas broker of its own listens on "))
        os.killpg(process.pid, number)
        out, err = children.finish(process)
    assert process.returncode == 130, err
    assert out.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in out + err
    address = line.split()[-1].rstrip(".")
    asked = children.run(
        [sys.executable, "-m", "barnabas", "topics", "list", "-b", address], cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert asked.stderr == f"barnabas: no broker answers at {address} (connection refused)\n"
