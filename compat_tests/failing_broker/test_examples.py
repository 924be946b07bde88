"""A broker that fails on demand, in the test frameworks of other languages: the examples of
docs/testing-other-languages/examples.md, each one file, run as their authors would run them."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.foreign.kafka import SMALL_JVM, kafka_runtime
from tools.foreign.languages import ToolchainMissing, find_node, go_program, node_modules
from tools.jvm.compiler import find_compiler
from tools.jvm.junit import junit_classpath
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S

HERE = Path(__file__).parent
OTHERS = HERE.parent


@pytest.fixture(scope="module")
def control() -> Iterator[BarnabasControl]:
    with BarnabasControl() as process:
        yield process


def run(control: BarnabasControl, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """The framework's output for tests that pass."""
    with subprocess.Popen(
        command, env={**os.environ, **(environment or {}), "BARNABAS_CONTROL": control.url},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # with the processes that the framework has for its files
            printed, _ = process.communicate(timeout=PATIENCE_S)
            pytest.fail(f"not ended after {PATIENCE_S} s:\n{printed}")
    assert process.returncode == 0, printed
    return printed


@pytest.mark.slow
def test_go(control: BarnabasControl) -> None:
    try:
        program = go_program(OTHERS / "go_clients" / "franz_go", of_tests=True)
    except ToolchainMissing as missing:
        tool_missing(missing)
    printed = run(control, [program, "-test.v", "-test.run", "FailingBroker"])
    assert re.findall(r"^--- PASS: (\w+)", printed, re.MULTILINE) == [
        "TestFailingBrokerIsAskedAgain",
        "TestFailingBrokerLosesAnAcknowledgement",
    ]


@pytest.mark.slow
def test_node(control: BarnabasControl) -> None:
    folder = OTHERS / "kafkajs_client"
    try:
        environment = {"NODE_PATH": str(node_modules(folder)), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    except ToolchainMissing as missing:
        tool_missing(missing)
    command = [find_node(), "--test", "--test-reporter=tap", folder / "failing_broker.test.js"]
    printed = run(control, command, environment)
    assert re.findall(r"^ *ok \d+ - (.*)$", printed, re.MULTILINE)[:2] == [
        "a producer asks again",
        "a consumer hears that its group does not know it any more, and joins again",
    ]


@pytest.mark.full
@pytest.mark.java
def test_java(control: BarnabasControl, tmp_path: Path) -> None:
    """JUnit 5 with Kafka's own client."""
    try:
        java, compiler = find_java(), find_compiler()
    except JavaMissing as missing:
        tool_missing(missing)
    classpath = f"{kafka_runtime().classpath}:{junit_classpath()}"
    run(control, [compiler, "-Xlint:all,-classfile", "-cp", classpath, "-d", tmp_path, HERE / "FailingBrokerTest.java"])
    launcher = "org.junit.platform.console.ConsoleLauncher"
    command = [java, *SMALL_JVM, "-cp", f"{tmp_path}:{classpath}", launcher, "execute"]
    printed = run(control, [*command, "--select-class", "FailingBrokerTest", "--disable-banner", "--details=tree"])
    assert "[         3 tests successful      ]" in printed
    assert "[         0 tests failed          ]" in printed
