"""No test, and no tool that tests use, patches the broker, nor the libraries below it: what it takes is handed to it
(`broker/environment.py`, arguments), and faults are real ones, of files, stores, threads and processes. Where a bug is
put in on purpose, or something has no seam, ALLOWED says so.

An object that a test has made, or got, is its own; classes and modules are everybody's.
"""

import ast
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("tests", "compat_tests", "tools")
PATCHING: Final = ("setattr", "delattr", "setitem", "delitem", "patch", "object")
"""Of pytest's monkeypatch and of unittest.mock; the first argument is what is patched, or its name."""

ALLOWED: Final = {
    (
        "tests/support/bugs.py",
        "*",
    ): "puts in bugs that raise, for tests of errors that nobody foresaw",
    ("tests/broker/replication/test_walks.py", "*"): "mutants: the walks find each guarantee that is left out",
    ("tests/broker/whole/test_simulation.py", "*"): "mutants: the simulation finds bugs that were mended",
    ("tests/storage/recovery/test_crash_points.py", "*"): "mutants: the crash points find each step that is left out",
    ("tests/broker/cli/conftest.py", "sys"): "stdin, which a command reads",
    ("tests/broker/observability/test_logs.py", "logging"): "raiseExceptions, which is there to be set",
    ("tests/soak/test_soak.py", "'tools.soak.run.PATIENCE_S'"): "the soak's own patience, for what fails in the end",
    ("tests/soak/test_soak.py", "'tools.soak.run.ACKNOWLEDGED_BETWEEN_CRASHES'"): "as PATIENCE_S",
    ("tests/soak/test_soak.py", "'tools.soak.run.TRANSACTION_TIMEOUT_S'"): "as PATIENCE_S",
    ("tests/test_container_engine.py", "os"): "geteuid: a user who is not root",
    ("tests/broker/client/test_client.py", "client"): "one client's own send: an answer that no broker gives",
    ("tests/testing/brokers/test_broker.py", "'tempfile.tempdir'"): "where temporary directories are, there to be set",
    ("compat_tests/java_tools/test_shared_jvm.py", "py4j.java_gateway"): "puts back what Spark changes there",
    ("compat_tests/spark/shared_spark.py", "SparkContext"): "forgets a Java process that was killed",
    ("compat_tests/spark/shared_spark.py", "SparkSession"): "as SparkContext",
    ("compat_tests/spark/pipelines/test_archive.py", "ArchiveLog"): "an example's job that dies before it commits",
    ("compat_tests/spark/pipelines/test_archive.py", "FileSystem"): "an example's job that is overtaken by another",
    ("compat_tests/spark/pipelines/test_archive.py", "archive"): "as FileSystem",
    ("compat_tests/spark/pipelines/test_archive.py", "queue_gaps"): "as FileSystem",
    ("tools/soak/planted.py", "*"): "bugs that a soak has to find",
    ("tools/soak/fatal_append.py", "*"): "a process that is killed in the middle of an append",
    ("tests/support/failing_disk.py", "FlushTask"): "a bug: nobody hears that a sync failed",
    ("tools/soak/copier.py", "KafkaNetSocket"): "a fault of kafka-python, which leaves sockets open",
    (
        "tools/simulation/world/loop.py",
        "asyncio",
    ): "run_coroutine_threadsafe: a thread that waits keeps no turn",
    ("tools/simulation/run.py", "sys"): "unraisablehook, which is there to be set",
    ("tests/support/changed_paths.py", "sys"): "dont_write_bytecode, which is there to be set",
}
"""Files, and what they may change; "*" is anything."""


class Patch(NamedTuple):
    """A class or module that is changed."""

    path: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: changes {self.target}"


def patches() -> Iterator[Patch]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield from patches_of(ast.parse(file.read_text()), str(file.relative_to(ROOT)))


def patches_of(tree: ast.AST, path: str) -> Iterator[Patch]:
    """Assignments to attributes of what is imported, and whatever a tool for patches changes."""
    nodes = list(ast.walk(tree))
    imported = set(imports(nodes))
    for node in nodes:
        for target in changed_by(node):
            if is_tool(node) or is_everybodys(target, imported):
                yield Patch(path, target.lineno, ast.unparse(target))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]


def changed_by(node: ast.AST) -> list[ast.expr]:
    """Whose attributes a statement or call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return [target.value for target in node.targets if isinstance(target, ast.Attribute | ast.Subscript)]
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [node.target.value] if isinstance(node.target, ast.Attribute | ast.Subscript) else []
    if isinstance(node, ast.Call) and (is_tool(node) or is_named(node.func, "setattr", "delattr")):
        return node.args[:1]
    return []


def is_named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def is_tool(node: ast.AST) -> bool:
    """`monkeypatch.setattr`, `mock.patch.object`, and so on; a plain name is a function of one's own."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHING


def is_everybodys(changed: ast.expr, imported: Set[str]) -> bool:
    """An object that is not imported may be a test's own, unless the expression takes `type` to get it."""
    while isinstance(changed, ast.Attribute | ast.Subscript):
        changed = changed.value
    if isinstance(changed, ast.Call):
        return is_named(changed.func, "type")
    return isinstance(changed, ast.Name) and changed.id in imported


@pytest.mark.slow
def test_no_test_patches_the_broker() -> None:
    found = list(patches())
    others = [patch for patch in found if not {(patch.path, patch.target), (patch.path, "*")} & set(ALLOWED)]
    assert not others, "\n".join(map(str, others))
    gone = set(ALLOWED) - {(patch.path, patch.target) for patch in found} - {(patch.path, "*") for patch in found}
    assert not gone, "allowances that nobody needs any more"


@pytest.mark.parametrize(
    ("source", "is_patch"),
    [
        ("from barnabas.broker.server import Broker\nmonkeypatch.setattr(Broker, 'start', f)", True),
        ("from barnabas.broker import server\nmonkeypatch.setattr(server, 'LIMIT', 1)", True),
        ("import barnabas.broker.server\nmonkeypatch.setattr(barnabas.broker.server.Broker, 'start', f)", True),
        ("monkeypatch.setattr('barnabas.broker.server.LIMIT', 1)", True),
        ("def test(monkeypatch, owner):\n monkeypatch.setattr(owner, 'start', f)", True),
        ("from barnabas.broker import machine\npatched.setitem(machine._DECIDERS, Event, f)", True),
        ("from unittest import mock\nwith mock.patch('barnabas.clock.SystemClock.now_ms'): pass", True),
        ("from barnabas.broker.server import Broker\nmock.patch.object(Broker, 'start')", True),
        ("from barnabas.broker.server import Broker\nBroker.start = f", True),
        ("from barnabas.broker import server\nserver.LIMIT = 1", True),
        ("from barnabas.broker.server import Broker\nsetattr(Broker, name, f)", True),
        ("type(broker).start = f", True),
        ("monkeypatch.setattr(type(broker), 'start', f)", True),
        ("import sys\nmonkeypatch.setattr(sys, 'executable', path)", True),
        ("import threading\npatched.setattr(threading.Thread, 'start', refuse)", True),
        ("import logging\nlogging.Logger.makeRecord = refuse", True),
        ("monkeypatch.setattr('tempfile.tempdir', path)", True),
        ("monkeypatch.setenv('HOME', path)", False),
        ("broker.now = f", False),
        ("setattr(message, field.name, value)", False),
        ("from barnabas.wire.record_batch import patch\npatch(batch, 0, 1, 2)", False),
    ],
)
def test_the_rule(source: str, is_patch: bool) -> None:
    assert bool(list(patches_of(ast.parse(source), "f"))) is is_patch
