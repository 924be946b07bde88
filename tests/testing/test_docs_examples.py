"""The examples in docs/testing.md and docs/testing/ are tests: they run here, each in a file, as a reader would run
them."""

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from barnabas.spark_examples.ivy import exclusive, ivy_home, ivy_settings
from barnabas.spark_examples.java import JavaMissing, cache_folder, find_java, say
from tests.support.reference_loop import assert_within, work_s
from tests.support.required import tool_missing
from tools.processes import children

pytestmark = pytest.mark.live

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "testing.md", *sorted((DOCS / "testing").glob("*.md"))]
README = ROOT / "README.md"
APPLICATION = DOCS / "examples" / "orders"
CACHE = cache_folder()  # before `pytester` changes $HOME
PYTEST_ASYNCIO = "pytest-asyncio==1.5.0"

ONE_IVY_AT_A_TIME = """
import pytest
from barnabas.spark_examples.ivy import exclusive, ivy_home


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    if fixturedef.argname != "spark":
        return (yield)
    with exclusive(ivy_home() / ".lock"):
        return (yield)
"""


def blocks(language: str) -> list[str]:
    """The examples of the pages, without parts of the application."""
    return [block for block in all_blocks(language) if not is_of_the_application(block)]


def all_blocks(language: str) -> list[str]:
    text = "".join(page.read_text() for page in PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def is_of_the_application(block: str) -> bool:
    return any(block in path.read_text() for path in APPLICATION.iterdir() if path.is_file())


def is_spark(block: str) -> bool:
    return "pyspark" in block


def is_async(block: str) -> bool:
    return "async def test_" in block


def asyncio_plugin() -> Path:
    """A folder with pytest-asyncio, for PYTHONPATH. It is fetched once, and not installed beside the project's own
    packages: there it would take part in all tests. Skips where it cannot be had."""
    folder = CACHE / "python" / PYTEST_ASYNCIO
    with exclusive(folder.with_name(folder.name + ".lock")):
        if not (folder / ".complete").exists():
            say(f"Fetching {PYTEST_ASYNCIO} ...")
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", folder]
            done = children.run([*install, PYTEST_ASYNCIO], capture_output=True, text=True)
            if done.returncode:
                tool_missing(f"{PYTEST_ASYNCIO} cannot be fetched: {done.stderr.strip()}")
            (folder / ".complete").touch()
    return folder


def write(pytester: pytest.Pytester, examples: list[str]) -> int:
    """Write examples as files; returns how many tests they hold, one with parameters once for each set of them."""
    pytester.makepyfile(**{f"test_example_{number}": block for number, block in enumerate(examples)})
    return sum(
        len(ast.literal_eval(parameters)) if parameters else 1
        for block in examples
        for parameters in re.findall(
            r"^(?:@pytest\.mark\.parametrize\(.*, (\[.*\])\)\n)?(?:async )?def test_", block, re.MULTILINE
        )
    )


@pytest.mark.slow
def test_examples(pytester: pytest.Pytester) -> None:
    examples = [block for block in blocks("python") if "def test_" in block]
    count = write(pytester, [block for block in examples if not is_spark(block) and not is_async(block)])
    assert count >= 10
    warnings = ["-W", "error"]
    for name in ("read_text", "open_text"):  # kafka-python's, as it is imported
        warnings += ["-W", f"ignore:{name} is deprecated:DeprecationWarning"]
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *warnings, "--durations=3"
    )
    result.assert_outcomes(passed=count)


@pytest.mark.slow
def test_async_example(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(asyncio_plugin()), prepend=os.pathsep)
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    count = write(pytester, [block for block in blocks("python") if is_async(block)])
    assert count >= 1
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error")
    result.assert_outcomes(passed=count)


@pytest.mark.slow
def test_the_application(pytester: pytest.Pytester) -> None:
    """As it stands: 20 tests, on two workers, with what they start."""
    assert sum(map(is_of_the_application, all_blocks("python"))) == 4, "docs/testing/ shows what is not in the files"
    run_application(pytester)


@pytest.mark.full
@pytest.mark.alone
def test_the_application_is_tested_in_seconds(pytester: pytest.Pytester) -> None:
    """Some 5 s from no broker to green."""
    assert_within(1_500, work_s, lambda: run_application(pytester), "the application's 20 tests")


def run_application(pytester: pytest.Pytester) -> float:
    """How many seconds the tests of the application take."""
    for path in APPLICATION.iterdir():
        if path.is_file():
            shutil.copy(path, pytester.path)
    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider", "-W", "error", "--durations=3")
    result.assert_outcomes(passed=20)
    return result.duration


CONFIGURED = """
def test_it(kafka_broker):
    assert kafka_broker.create_topic("t").partition_count == 3
"""


@pytest.mark.slow
def test_configuration_by_fixture(pytester: pytest.Pytester) -> None:
    [conftest] = [block for block in blocks("python") if block.startswith("# conftest.py")]
    pytester.makeconftest(conftest)
    pytester.makepyfile(CONFIGURED)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error").assert_outcomes(
        passed=1
    )


@pytest.mark.slow
def test_configuration_by_file(pytester: pytest.Pytester) -> None:
    [ini] = blocks("ini")
    pytester.makeini(ini)
    pytester.makepyfile(CONFIGURED)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error").assert_outcomes(
        passed=1
    )


@pytest.mark.spark
@pytest.mark.full
def test_spark_example(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARNABAS_CACHE", str(CACHE))
    try:
        monkeypatch.setenv("JAVA_HOME", str(find_java().resolve().parent.parent))
    except JavaMissing as missing:
        tool_missing(missing)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Where this machine finds the connector, which readers get from Maven Central.
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f"--conf spark.jars.ivy={ivy_home()} --conf spark.jars.ivySettings={ivy_settings()}"
        " --driver-memory 512m pyspark-shell",
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    pytester.makeconftest(ONE_IVY_AT_A_TIME)
    count = write(pytester, [block for block in blocks("python") if is_spark(block)])
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest").assert_outcomes(passed=count)


@pytest.mark.slow
def test_the_readmes_example(pytester: pytest.Pytester) -> None:
    found = re.findall(r"^```python\n(from barnabas.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    used = "\n\ndef run_my_pipeline(bootstrap_servers):\n    assert bootstrap_servers\n"
    pytester.makepyfile(**{f"test_readme_{number}": block + used for number, block in enumerate(found)})
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error")
    assert result.ret == 0
