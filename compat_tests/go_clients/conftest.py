"""The two Go programs, built once, run with the name of a scenario."""

import json
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.required import tool_missing
from tools.foreign.languages import ToolchainMissing, go_program
from tools.processes import children

HERE = Path(__file__).parent

Scenario = Callable[..., Any]


def runner(folder: str, bootstrap_servers: str) -> Scenario:
    """Run a scenario of the program in `folder` by its name; what it answered."""
    try:
        program = go_program(HERE / folder)
    except ToolchainMissing as missing:
        tool_missing(missing)

    def run(name: str, **arguments: Any) -> Any:
        done = children.run(
            [program, name, bootstrap_servers, json.dumps(arguments)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def franz_go(cluster: Any) -> Scenario:
    return runner("franz_go", cluster.bootstrap_servers)


@pytest.fixture(scope="session")
def sarama(cluster: Any) -> Scenario:
    return runner("sarama", cluster.bootstrap_servers)


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"go-{secrets.token_hex(6)}"
