"""The commands that the pages about security and quotas print, in their order, on the broker that the first of them
starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.security.test_serve_secure import Running, start, stop
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands_of(page: str) -> list[str]:
    """The commands of `barnabas` in the blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("barnabas ")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    started = start(tmp_path_factory.mktemp("pages") / "data")
    yield started
    stop(started)


def run(line: str, running: Running, password: str = "") -> tuple[int, str]:
    """The exit status and the output of a command line, as the administrator, in the folder of the broker's data."""
    folder = running.directory.parent.parent
    for printed, here in (
        ("localhost:9092", running.address),
        ("--bootstrap-server 127.0.0.1:9093", f"--bootstrap-server {running.address}"),
        ("--command-config admin.properties", "--command-config data/secure/admin.properties"),
        ("/etc/barnabas", "etc"),
    ):
        line = line.replace(printed, here)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BARNABAS_BOOTSTRAP_SERVER": running.address,
    }
    if password:
        environ["BARNABAS_PASSWORD"] = password
    else:
        environ["BARNABAS_COMMAND_CONFIG"] = "data/secure/admin.properties"
    done = children.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder, env=environ, capture_output=True, text=True, input="a new password of bob\n",
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_security(running: Running) -> None:
    """Twice a user is added whom the page has added before: that one is removed."""
    serve, *commands = commands_of("security.md")
    assert serve == "barnabas serve --secure --data-dir data --listen :9092"
    known: set[str] = set()
    password = ""
    for line in commands:
        user = line.split()[3] if " users " in line and " list" not in line else ""
        if " users add " in line and user in known:
            assert run(f"barnabas users remove {user}", running)[0] == 0
        status, told = run(line, running, password if " topics list --user " in line else "")
        assert status == 0, (line, told)
        if " users add " in line:
            known.add(user)
            password = password or told.split()[-1]


@pytest.mark.parametrize("page", ["quotas.md", "security/tls.md", "security/sasl.md"])
def test_other_pages(page: str, running: Running) -> None:
    run("barnabas users remove alice", running)
    commands = commands_of(page)
    assert commands
    for line in commands:
        status, told = run(line, running)
        assert status == 0, (line, told)
        assert told
