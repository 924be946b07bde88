"""The commands in docs/testing-other-languages.md are run as they stand, but for ports and names."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.testing.control.verbs import VERBS
from tools.barnabas_process import BarnabasControl
from tools.required import tool_missing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing-other-languages.md"
SERVE, *CURLS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def process() -> Iterator[BarnabasControl]:
    with BarnabasControl() as process:
        yield process


def test_it_begins_with_the_server(process: BarnabasControl) -> None:
    """Which is started here, with other ports."""
    assert SERVE == "barnabas serve --listen 127.0.0.1:9092 --control 127.0.0.1:8099\n"
    assert process._command()[-5:] == ["serve", "--listen", process.bootstrap_servers, "--control", "127.0.0.1:0"]


@pytest.mark.parametrize("block", CURLS)
def test_commands(process: BarnabasControl, block: str) -> None:
    if not shutil.which("curl"):
        tool_missing("no curl")
    script = block.replace("http://127.0.0.1:8099", process.url).replace("billing", "paying").replace("orders", "trips")
    lines = script.splitlines()
    for line in lines:
        assert line.startswith("curl -sS "), line
        command = line.replace("curl -sS", "curl -sS --fail-with-body", 1)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len(lines) > 2


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
    text = PAGE.read_text()
    assert f"`{example}`" in text
    [block] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = lines(block)[: -1 if language == "java" else None]  # but for the end of the class
    tested = [line for line in lines((PAGE.parents[1] / example).read_text()) if line in shown or "import" not in line]
    assert len(shown) > 40
    assert shown == tested[: len(shown)]


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_all_verbs_are_on_the_page() -> None:
    text = PAGE.read_text()
    for verb in VERBS:
        last = verb.path.rpartition("/")[2]
        assert last.startswith("{") or f"{last}`" in text or f"/{last}" in text, verb.name
