"""Tests wait for events. No test sleeps to let something happen, and every limit of a wait is `PATIENCE_S`
(`tools/waiting.py`): a busy machine takes longer than any smaller number of seconds.

A test that needs real time says why in a comment beside the call or above its statement: `# Real time: ...`. A limit
inside `pytest.raises(TimeoutError)` is meant to be reached and needs no comment.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("tests", "compat_tests")
REASON: Final = "# Real time: "

POSITIONS: Final = {
    "wait": 0, "wait_for": 1, "join": 0, "result": 0, "exception": 0, "settimeout": 0, "flush": 0, "poll": 0,
    "timeout": 0, "create_connection": 1, "init_transactions": 0, "commit_transaction": 0, "abort_transaction": 0,
    "list_topics": 1, "committed": 1, "send_offsets_to_transaction": 2, "eventually": 1, "_until": 1,
    "awaitTermination": 0,
}  # fmt: skip
"""Where a call takes its limit, if not by name."""
KEYWORDS: Final = ("timeout", "timeout_s", "within_s", "deadline_s")
LOOKS: Final = ("poll", "consume", "flush")
"""Clients' calls that a loop repeats: up to `LOOK_S_MAX` is a step of the loop, and no limit."""
LOOK_S_MAX: Final = 1.0

VIRTUAL: Final = {
    "tests/broker/whole/test_shuffled_loop.py": "time of a loop that moves its own clock",
    "tests/broker/whole/test_simulated_network.py": "time of a loop that moves its own clock",
    "tests/broker/whole/test_simulation.py": "time of a loop that moves its own clock",
    "tests/support/broker_simulation.py": "time of a loop that moves its own clock",
}
"""Files in which seconds do not pass."""


class Wait(NamedTuple):
    """A call that sleeps, or stops waiting after a number of seconds."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def waits() -> Iterator[Wait]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            is_a_program = re.search(r"/golden\w*/", path)  # that is run by hand
            if path not in VIRTUAL and not is_a_program:
                yield from waits_of(file.read_text(), path)


def waits_of(source: str, path: str = "") -> Iterator[Wait]:
    """The waits of a module that no comment explains."""
    tree = ast.parse(source)
    numbers = numbers_of(tree)
    nodes = list(ast.walk(tree))
    found = [(node, limit) for node in nodes if (limit := seconds_of(node, numbers)) is not None]
    if not found:
        return
    fine = explained_lines(nodes, source) | lines_of_raises(nodes)
    for node, limit in found:
        if not fine & set(lines(node)):
            yield Wait(path, limit.lineno, ast.unparse(node if isinstance(node, ast.Call | ast.BinOp) else limit))


def numbers_of(tree: ast.Module) -> dict[str, float]:
    """The module's own constants."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and (number := number_of(node.value, {})) is not None:
                found[target.id] = number
    return found


def number_of(node: ast.expr | None, numbers: Mapping[str, float]) -> float | None:
    """The value of an expression of constants."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand) if (value := number_of(operand, numbers)) is not None:
            return -value
        case ast.BinOp(left=left, right=right):
            first, second = number_of(left, numbers), number_of(right, numbers)
            return None if first is None or second is None else max(first, second)  # not 0, which is what counts
        case ast.Name(id=name):
            return numbers.get(name)
    return None


def seconds_of(node: ast.AST, numbers: Mapping[str, float]) -> ast.expr | None:
    """The number of seconds that a call sleeps or waits, or that a deadline lies ahead."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and is_clock(node.left):
        return node.right if number_of(node.right, numbers) is not None else None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return default_limit(node.args, numbers)
    if not isinstance(node, ast.Call):
        return None
    name = name_of(node.func)
    if name == "sleep":
        slept = node.args[0] if node.args else None
        return slept if slept is not None and number_of(slept, numbers) != 0 else None
    for limit in limits_of(node, name):
        number = number_of(limit, numbers)
        if number is not None and number > 0 and not (name in LOOKS and number <= LOOK_S_MAX):
            return limit
    return None


def limits_of(call: ast.Call, name: str) -> list[ast.expr]:
    found = [keyword.value for keyword in call.keywords if keyword.arg in KEYWORDS]
    position = POSITIONS.get(name)
    if position is not None and len(call.args) > position and isinstance(call.func, ast.Attribute):
        found.append(call.args[position])
    return found


def default_limit(arguments: ast.arguments, numbers: Mapping[str, float]) -> ast.expr | None:
    """The default of a function's own limit."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False)
    ]
    defaults += [
        (name, value) for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    ]
    return next((each for name, each in defaults if name.arg in KEYWORDS and number_of(each, numbers)), None)


def name_of(called: ast.expr) -> str:
    """The name of a function or method, without what it belongs to; none for a mark of pytest."""
    if isinstance(called, ast.Attribute):
        is_a_mark = isinstance(called.value, ast.Attribute) and called.value.attr == "mark"
        return "" if is_a_mark else called.attr
    return called.id if isinstance(called, ast.Name) else ""


def is_clock(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) in ("monotonic", "perf_counter", "time")


def lines(node: ast.AST) -> range:
    assert isinstance(node, ast.expr | ast.stmt)
    # Of a function its head alone.
    end = node.body[0].lineno - 1 if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else node.end_lineno
    return range(node.lineno, (end or node.lineno) + 1)


def explained_lines(nodes: list[ast.AST], source: str) -> set[int]:
    """The lines with a comment that gives a reason, and those of the simple statement below it."""
    text = source.splitlines()
    found = {number for number, line in enumerate(text, 1) if REASON in line}
    for line in sorted(found):
        below = line
        while below <= len(text) and text[below - 1].lstrip().startswith("#"):
            below += 1
        found.add(below)
    for node in nodes:
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno in found:
            found |= set(lines(node))
    return found


def lines_of_raises(nodes: list[ast.AST]) -> set[int]:
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.With | ast.AsyncWith) and any(is_a_vain_wait(item.context_expr) for item in node.items):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def is_a_vain_wait(manager: ast.expr) -> bool:
    if not isinstance(manager, ast.Call) or name_of(manager.func) != "raises":
        return False
    return re.search("Timeout|Hangs", ast.unparse(manager)) is not None


def test_no_test_waits_for_a_number_of_seconds() -> None:
    assert list(map(str, waits())) == []


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(0.1)",
        "await asyncio.sleep(delay_s)",
        "asyncio.wait_for(work(), 30)",
        "process.communicate(timeout=60)",
        "thread.join(5)",
        "LIMIT_S = 20\nfuture.result(LIMIT_S)",
        "deadline = time.monotonic() + 10",
        "def eventually(look, timeout_s=30.0):\n    pass",
        "consumer.poll(10)",
    ],
)
def test_a_number_of_seconds_is_found(source: str) -> None:
    assert len(list(waits_of(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.sleep(0)",
        "future.result(PATIENCE_S)",
        "consumer.poll(0.1)",
        "time.sleep(0.1)  # Real time: the subject is a clock that goes on",
        "# Real time: the subject is a clock that goes on\n# by itself.\ntime.sleep(0.1)",
        "with pytest.raises(TimeoutError):\n    hold.wait_held(timeout=0.1)",
        "@pytest.mark.timeout(600)\ndef test():\n    pass",
    ],
)
def test_the_rest_is_fine(source: str) -> None:
    assert list(waits_of(source)) == []
