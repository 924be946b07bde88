"""The commands in docs/testing-other-languages.md and its folder run as they stand, except for ports and names."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.testing.control.verbs import VERBS
from tests.support.required import tool_missing
from tests.testing.control_client import ControlClient
from tools.foreign.languages import ToolchainMissing, go_program
from tools.jvm.compiler import find_compiler
from tools.processes import children
from tools.processes.barnabas import BarnabasControl
from tools.processes.server import ROOT

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[3] / "docs"
START = DOCS / "testing-other-languages.md"
TEXT = "".join(page.read_text() for page in [START, *sorted(START.with_suffix("").glob("*.md"))])
SERVE, *CURLS = [
    block.replace(" \\\n    ", " ") for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
]


@pytest.mark.live
def test_the_page_begins_with_the_server(process: BarnabasControl) -> None:
    """The server is started here, with other ports."""
    assert SERVE == "barnabas serve --listen 127.0.0.1:9092 --control 127.0.0.1:8099\n"
    assert process._command()[-5:] == ["serve", "--listen", process.bootstrap_servers, "--control", "127.0.0.1:0"]


@pytest.mark.live
@pytest.mark.parametrize("block", CURLS)
def test_commands(process: BarnabasControl, block: str) -> None:
    if not shutil.which("curl"):
        tool_missing("no curl")
    script = block.replace("http://127.0.0.1:8099", process.url).replace("billing", "paying").replace("orders", "trips")
    lines = script.splitlines()
    for line in lines:
        assert line.startswith("curl -sS "), line
        command = line.replace("curl -sS", "curl -sS --fail-with-body", 1)
        done = children.run(["bash", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len(lines) > 2


@pytest.mark.live
def test_answers_are_as_shown(process: BarnabasControl) -> None:
    """The page has one, to the command above it."""
    control = ControlClient(process.url)
    [shown] = map(json.loads, blocks("json"))
    [(fields, verb)] = re.findall(r"^curl -sS --json '(.*)' http://127\.0\.0\.1:8099(\S+)$", CURLS[0], re.MULTILINE)
    answer = control.done("POST", verb, **json.loads(fields))
    try:
        number = answer["fault"]
        assert answer == {**shown, "fault": number, "id": number}
        assert list(answer) == list(shown)
        assert control.done("GET", "/brokers/main/faults")["faults"] == [answer]
    finally:
        control.done("DELETE", "/brokers/main/faults")


@pytest.mark.parametrize(
    ("language", "example"),
    [
        ("go", "compat_tests/go_clients/franz_go/failing_broker_test.go"),
        ("js", "compat_tests/kafkajs_client/failing_broker.test.js"),
        ("java", "compat_tests/failing_broker/FailingBrokerTest.java"),
    ],
)
def test_other_languages_are_shown_as_they_are_tested(language: str, example: str) -> None:
    """compat_tests/failing_broker runs the examples; the page has them up to the end of their first test, and in Java
    imports what that needs."""
    assert f"`{example}`" in TEXT
    block = blocks(language)[0]
    shown = lines(block)[: -1 if language == "java" else None]  # but for the end of the class
    tested = [line for line in lines((ROOT / example).read_text()) if line in shown or "import" not in line]
    assert len(shown) > 40
    assert shown == tested[: len(shown)]


@pytest.fixture
def barnabas_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tested package as a command."""
    command = tmp_path / "bin" / "barnabas"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m barnabas "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")


@pytest.mark.live
@pytest.mark.parametrize("language", ["go", "java"])
def test_a_server_ends_with_its_parent(language: str, barnabas_in_path: None) -> None:
    """When its input ends, that is; and its output ends with it."""
    [command] = re.findall(r"\"(barnabas serve .*)\"", blocks(language)[1])
    with subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip().partition("control=")[2]
        assert ControlClient(url).done("GET", "/brokers")["brokers"][0]["name"] == "main"
        server.stdin.close()
        assert server.stdout.read() == ""
    assert server.returncode is not None
    with pytest.raises(OSError, match="refused"):
        ControlClient(url).ask("GET", "/brokers")


@pytest.mark.live
def test_go_starts_a_server(tmp_path: Path, barnabas_in_path: None) -> None:
    folder = tmp_path / "go_with_a_server"
    folder.mkdir()
    (folder / "go.mod").write_text("module shop\n\ngo 1.20\n")
    (folder / "main_test.go").write_text(blocks("go")[1])
    (folder / "control_test.go").write_text("""package main

import (
    "net/http"
    "os"
    "testing"
)

func TestControl(t *testing.T) {
    if response, err := http.Get(os.Getenv("BARNABAS_CONTROL") + "/brokers"); err != nil || response.StatusCode != 200 {
        t.Fatal(response, err)
    }
}
""")
    try:
        program = go_program(folder, of_tests=True)
    except ToolchainMissing as missing:
        tool_missing(missing)
    assert run([program, "-test.v"], folder).count("--- PASS") == 1


@pytest.mark.live
@pytest.mark.java
def test_java_starts_a_server(tmp_path: Path, barnabas_in_path: None) -> None:
    try:
        java, compiler = find_java(), find_compiler()
    except JavaMissing as missing:
        tool_missing(missing)
    (tmp_path / "BarnabasServer.java").write_text(blocks("java")[1])
    (tmp_path / "Shop.java").write_text("""import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

class Shop {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(BarnabasServer.URL + "/brokers")).build();
        System.out.print(HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body());
    }
}
""")
    run([compiler, "-Xlint:all", "BarnabasServer.java", "Shop.java"], tmp_path)
    assert '"name": "main"' in run([java, "-cp", ".", "Shop"], tmp_path)


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = children.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.live
def test_no_two_test_runs_want_one_port() -> None:
    assert re.findall(r"barnabas serve --control", TEXT) == ["barnabas serve --control"]  # its name


def blocks(language: str) -> list[str]:
    """The examples of a language: the tests, and how they start a server."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [str(block) for block in found]


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_all_verbs_are_on_the_page() -> None:
    for verb in VERBS:
        last = verb.path.rpartition("/")[2]
        assert last.startswith("{") or f"{last}`" in TEXT or f"/{last}" in TEXT, verb.name
