"""The examples of `users`, `acls`, `quotas` and `certificates`, and what such commands change, on a broker with an
authorizer for which the anonymous user of the tests is a super user."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import Broker
from tests.support.required import tool_missing
from tools.processes import children
from tools.references.command_line import commands, examples

pytestmark = [pytest.mark.slow, pytest.mark.live]

Run = Callable[..., Any]

OF_BROKERS = ("barnabas users", "barnabas acls", "barnabas quotas")
LINES = [(path, line) for path, command in commands() for line in examples(command)]
EXAMPLES = [line for path, line in LINES if path.startswith(OF_BROKERS)]
CERTIFICATES = [line for path, line in LINES if path.startswith("barnabas certificates")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    configs = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(configs=configs) as running:
        yield running


def in_shell(line: str, folder: Path, servers: str) -> tuple[int, str]:
    if "jq" in line and not shutil.which("jq"):
        tool_missing("jq is not installed (Debian: apt-get install jq)")
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BARNABAS_BOOTSTRAP_SERVER": servers,
    }
    done = children.run(
        ["bash", "-euo", "pipefail", "-c", line], cwd=folder, env=environ, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example(broker: Broker, run: Run, tmp_path: Path, line: str) -> None:
    """With users, rules and quotas that exist if it does not add them."""
    users = {row["user"] for row in run("users", "list", "--json").json}
    for name in ("alice", "bob", "carol"):
        if " users add" in line and name in users:
            assert run("users", "remove", name).status == 0
        elif " users add" not in line and name not in users:
            assert run("users", "add", name).status == 0
    if " quotas remove" in line or " quotas list" in line:
        assert run("quotas", "set", "--user", "alice", "--produce", "1MB").status == 0
        assert run("quotas", "set", "--user", "alice", "--client", "loader", "--produce", "1MB").status == 0
    status, told = in_shell(line, tmp_path, broker.bootstrap_servers)
    assert status == 0, told
    assert told or "jq" in line
    assert "Traceback" not in told


@pytest.mark.parametrize("line", CERTIFICATES)
def test_an_example_of_certificates(tmp_path: Path, line: str) -> None:
    if " show " in line:
        assert in_shell("barnabas certificates make --client alice", tmp_path, "")[0] == 0
    status, told = in_shell(line, tmp_path, "")
    assert status == 0, told
    assert told


def test_users(run: Run) -> None:
    added = run("users", "add", "dora", "--json").json
    [item] = added
    assert len(item["password"]) == 24
    assert run("users", "add", "dora").err == (
        "barnabas: user dora exists: `barnabas users password dora` gives another password\n"
    )
    [listed] = run("users", "list", "dora", "--json").json
    assert listed["mechanisms"] == [
        {"mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    other = run("users", "password", "dora", "--new-password", "-", stdin=b"hidden\n")
    assert (other.status, "hidden" in other.out) == (0, False)
    assert run("users", "remove", "dora").out == "user dora is removed\n"
    gone = run("users", "remove", "dora")
    assert (gone.status, gone.err) == (1, "barnabas: user dora has no password for SCRAM\n")


def test_acls(run: Run) -> None:
    assert run("acls", "add", "--user", "eve", "--read", "--topic", "orders", "--prefix").out == (
        "eve may READ topic orders...\n"
    )
    assert run("acls", "add", "--user", "eve", "--describe", "--group", "g").status == 0
    [rule] = run("acls", "list", "--user", "eve", "--topic", "orders-eu", "--json").json
    assert rule == {
        "principal": "User:eve",
        "permission": "ALLOW",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "orders",
        "pattern_type": "PREFIXED",
        "host": "*",
    }
    assert run("acls", "remove", "--user", "eve", "--read", "--topic", "orders").out == "0 rules removed\n"
    removed = run("acls", "remove", "--user", "eve").out
    assert re.findall(r"^removed: (.*)$", removed, re.MULTILINE) == [
        "eve may READ topic orders...",
        "eve may DESCRIBE group g",
    ]
    assert run("acls", "list", "--user", "eve", "--json").json == []


def test_quotas(run: Run) -> None:
    assert run("quotas", "set", "--user", "fred", "--produce", "10MB", "--requests", "25").out == (
        "user fred: producer_byte_rate=10000000, request_percentage=25\n"
    )
    [listed] = run("quotas", "list", "--user", "fred", "--json").json
    assert listed == {
        "entity": {"user": "fred"},
        "quotas": {"producer_byte_rate": 10_000_000.0, "request_percentage": 25.0},
    }
    assert run("quotas", "remove", "--user", "fred", "--produce").out == "user fred: producer_byte_rate removed\n"
    assert run("quotas", "remove", "--user", "fred").status == 0
    assert run("quotas", "remove", "--user", "fred").status == 1


def test_an_anonymous_client_without_permission_is_told_what_it_lacks() -> None:
    configs = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:admin"}
    with Broker(configs=configs) as broker:
        line = shlex.join(["barnabas", "topics", "create", "t", "-b", broker.bootstrap_servers])
        status, told = in_shell(line, Path.cwd(), "")
    assert status == 1
    assert "`barnabas acls add --user ANONYMOUS --create --" in told
