"""Every example that help and docs/command-line.md show is run, with names and records that are not theirs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.broker.cli.one_broker import read_configuration
from barnabas.broker.cli.serve import parser
from barnabas.testing import Broker
from tests.support.required import tool_missing
from tools.processes import children
from tools.processes.barnabas import BarnabasBrokers
from tools.references.command_line import commands, examples
from tools.waiting import PATIENCE_S

Run = Callable[..., Any]
Example = Callable[[str, Path, str], tuple[int, str, str]]

EXAMPLES = [(path, line) for path, command in commands() for line in examples(command)]
SERVE = [line for path, line in EXAMPLES if path == "barnabas serve"]
PAGE = Path(__file__).parents[3] / "docs" / "zookeeper.md"
ZOOKEEPER = [line for path, line in EXAMPLES if path == "barnabas zookeeper"]
OF_SEVERAL = ("barnabas topics reassign", "barnabas brokers drain", "barnabas brokers rebalance")
SEVERAL = [line for path, line in EXAMPLES if path in OF_SEVERAL]
OF_SECURITY = ("barnabas users", "barnabas acls", "barnabas quotas", "barnabas certificates")
"""Those of test_security_examples.py."""
OTHERS = [
    line
    for path, line in EXAMPLES
    if path not in ("barnabas serve", "barnabas zookeeper", *OF_SEVERAL) and not path.startswith(OF_SECURITY)
]

OTHER_NAMES = {
    "flights": "journeys",
    "loader-1": "reader-7",
    "loader": "reader",
    "greetings": "farewells",
    "pairs": "couples",
    "hello": "adieu",
    "test-1": "trial-1",
    "test-2": "trial-2",
    "copy": "duplicate",
    "dump.txt": "tipped.txt",
    "source=dump": "origin=tip",
}
NOT_THERE = "barnabas transactions abort"
"""Only who has a producer that hangs can end its transaction: test_cli_transactions.py does."""


def test_each_command_has_examples_that_begin_with_it() -> None:
    for path, command in commands():
        singular_or_plural = re.sub(r"^barnabas (\w+?)s?\b", r"barnabas \1s?\\b", path)
        assert [line for line in examples(command) if re.search(singular_or_plural, line)], path


@pytest.fixture(scope="module")
def transactional_id(broker: Broker) -> str:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "reader-7"})
    producer.init_transactions(PATIENCE_S)
    return "reader-7"


@pytest.fixture
def folder(broker: Broker, transactional_id: str, run: Run, tmp_path: Path) -> Path:
    """Create the topics with records, a group, a transactional id and files that the examples need."""
    there = broker.topic_names()
    for name in ("journeys", "couples", "trial-1", "trial-2", "duplicate"):
        if name not in there:
            broker.create_topic(name, partitions=4)
    lines = "".join(f"journey {number}\n" for number in range(1_300)).encode()
    if run("topics", "offsets", "journeys:0", "--json").json[0]["latest"] < 1_300:
        assert run("produce", "journeys", "-p", "0", "-q", "--key", "k", stdin=lines).status == 0
    assert run("groups", "reset-offsets", "reader", "-t", "journeys", "--to-earliest", "--execute").status == 0
    (tmp_path / "journeys.jsonl").write_bytes(lines)
    (tmp_path / "tipped.txt").write_text("a:1\nb:NULL\n")
    (tmp_path / "server.properties").write_text("node.id=5\nnum.partitions=7\n")
    (tmp_path / "kept").mkdir()
    return tmp_path


def other_names(line: str, broker: Broker) -> str:
    """The line with other names; what is created must not be there already."""
    names = OTHER_NAMES | ({"flights": "excursions", "latest": "newest"} if " create " in line else {})
    for old, new in names.items():
        line = re.sub(rf"(?<![\w-]){re.escape(old)}\b", new, line)
    kept = shlex.quote(str(broker.data_dir))
    return line.replace("~/.local/share/barnabas/1", kept).replace("/var/lib/kafka/data", kept)


@pytest.fixture
def example(run: Run, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Status, output and errors of a line: in a shell where it has a pipe, else in this process."""

    def ended(line: str, folder: Path, bootstrap_servers: str) -> tuple[int, str, str]:
        monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", bootstrap_servers)
        if "|" in line:
            environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = children.run(
                ["bash", "-euo", "pipefail", "-c", line], cwd=folder, env=environ, capture_output=True, text=True
            )
            return done.returncode, done.stdout, done.stderr
        monkeypatch.chdir(folder)
        here = run(*shlex.split(line)[1:])
        return here.status, here.out, here.err

    return ended


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("line", OTHERS)
def test_an_example(broker: Broker, example: Example, folder: Path, line: str) -> None:
    if "jq" in line and not shutil.which("jq"):
        tool_missing("jq is not installed (Debian: apt-get install jq)")
    status, out, err = example(other_names(line, broker), folder, broker.bootstrap_servers)
    if line.startswith(NOT_THERE):
        assert (status, out) == (1, "")
        assert err == "barnabas: no transaction of journeys-3 is open since offset 1042\n"
        return
    assert status == 0, out + err
    assert out + err != ""
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def several() -> Iterator[BarnabasBrokers]:
    with BarnabasBrokers(5) as running:
        yield running


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("line", SEVERAL)
def test_an_example_of_several_brokers(several: BarnabasBrokers, example: Example, tmp_path: Path, line: str) -> None:
    """Those with the ids 1 to 5. Nobody is there to be asked."""
    servers = several.bootstrap_servers
    created = example("barnabas topics create journeys -p 4 -r 2 --if-not-exists", tmp_path, servers)
    assert created[0] == 0, created
    asks_nobody = any(option in line for option in ("--yes", "--json", "--cancel"))
    status, out, err = example(
        line.replace("flights", "journeys") + ("" if asks_nobody else " --yes"), tmp_path, servers
    )
    assert status == 0, out + err
    assert out + err != ""
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("line", [line for line in SERVE if "--zookeeper" not in line])
def test_an_example_of_serve(tmp_path: Path, line: str) -> None:
    """Started as it stands but for ports and the directory, where options that come later count."""
    (tmp_path / "server.properties").write_text("num.partitions=7\n")
    line = line.replace("--control 127.0.0.1:8099", "--control 127.0.0.1:0")
    line += " --listen 127.0.0.1:0 --data-dir data" + (" --http 127.0.0.1:0" if "--http" in line else "")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = re.match(r"(?:[A-Z_]+=\S+ )*", line)
    assert variables is not None
    with subprocess.Popen(
        ["bash", "-c", f"{variables[0]}exec {line[variables.end() :]}"],
        cwd=tmp_path, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    protocol = "SASL_SSL" if "--secure" in line else "PLAINTEXT"
    assert ready.startswith(f"ready: {protocol}://127.0.0.1:")
    assert ("node.id=2 " in ready) == ("--node-id 2" in line)
    assert process.returncode == 0


def test_the_example_of_serve_with_zookeeper() -> None:
    """That it starts is tried in compat_tests/zookeeper."""
    [line] = [line for line in SERVE if "--zookeeper" in line]
    arguments = shlex.split(line.replace("2181/kafka", "2182/elsewhere"))[2:]
    resolution = read_configuration(parser().parse_args(arguments), {"HOME": "/home/somebody"})
    assert resolution.config is not None
    assert resolution.config.zookeeper_connect == "127.0.0.1:2182/elsewhere"


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("line", ZOOKEEPER)
def test_an_example_of_zookeeper(tmp_path: Path, line: str) -> None:
    line = line.replace("/tmp/znodes.sqlite", shlex.quote(str(tmp_path / "tree.sqlite"))) + " --listen 127.0.0.1:0"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=tmp_path, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        logged = process.stderr.read()
    assert re.fullmatch(r"ready: 127\.0\.0\.1:[1-9]\d*\n", ready)
    assert ("memory only" in logged) == ("--file" not in line)
    assert (tmp_path / "tree.sqlite").exists() == ("--file" in line)
    assert process.returncode == 0


@contextlib.contextmanager
def serving(line: str, folder: Path) -> Iterator[str]:
    """The ready line of a command, which is ended afterwards."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            children.finish(process)


@pytest.mark.slow
@pytest.mark.live
def test_a_broker_alone_with_zookeeper_has_groups(example: Example, tmp_path: Path) -> None:
    """By the two commands of docs/zookeeper.md, started as they stand but for ports and the directory."""
    shown = re.search(r"^    (barnabas zookeeper)\n    (barnabas serve (?:.*\\\n)+.*)$", PAGE.read_text(), re.MULTILINE)
    assert shown is not None
    zookeeper, serve = shown[1], shown[2].replace("\\\n", " ")
    assert " 127.0.0.1:2181 " in serve
    with serving(f"{zookeeper} --listen 127.0.0.1:0", tmp_path) as its_line:
        serve = serve.replace("127.0.0.1:2181", its_line.removeprefix("ready: ").strip())
        with serving(f"{serve} --listen 127.0.0.1:0 --data-dir data", tmp_path) as ready:
            address = re.match(r"ready: PLAINTEXT://(\S+) ", ready)
            assert address is not None, ready
            write = "echo adieu | barnabas produce farewells -q"
            read = "barnabas consume farewells -g readers --from-beginning -n 1"
            assert example(f"{write} && {read}", tmp_path, address[1]) == (0, "adieu\n", "")
            described = example("barnabas groups describe readers --json", tmp_path, address[1])
            offsets = [each["offset"] for row in json.loads(described[1]) for each in row["offsets"]]
            assert offsets == [1], described
