"""No test of the gate judges how long something took: what it asserts are counts, order, or the time of a clock that it
moves. A bound of real or processor time is for the full tier, where a test has the machine alone and compares with a
reference (`tests/support/reference_loop.py`).

What is looked for are spans of a real clock, differences of two of its readings, that an assertion or a returned value
compares; also where a name, a list or a function of the same file carries them there. How long a loop goes on is no
judgement: it may be bounded by a span or by a deadline.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

import pytest

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("tests", "compat_tests")
TIMES: Final = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
CLOCKS: Final = {
    *(f"time.{name}{unit}" for name in TIMES for unit in ("", "_ns")),
    *TIMES[:-1],
    *("resource.getrusage", "os.times", "os.getloadavg"),
}
MEASURES: Final = {"processor_share", "gap_ms"}
"""Spans that `tools/attack/hostile.py` measures."""

ALLOWED: Final = {
    ("compat_tests/java_tools/test_several_brokers.py", "check_rate"): "called by a case of the full tier alone",
    ("tests/support/reference_loop.py", "assert_within"): "for the full tier: the reference itself",
    ("compat_tests/differential/values.py", "_time"): "no bound: the present is told from times that were asked for",
}
"""Files and functions that may compare a span, with the reason."""

FULL_TIER: Final = {"full", "alone"}
IS_TIMED: Final = "is_timed"
"""A function that is told so judges only where it is: alone, in the full tier (`tests/abuse/conftest.py`)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
CARRYING: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.Call, ast.Return)
JUDGING: Final = (ast.Assert, ast.Return)


class Judgement(NamedTuple):
    """A comparison of a span of a real clock."""

    path: str
    function: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.function} compares real time: {self.text}"


class File:
    """The uses of readings of clocks in a file's functions."""

    def __init__(self, tree: ast.Module, path: str = "") -> None:
        self._path = path
        self._within: dict[ast.AST, list[Function]] = {}
        self._in_full = bool(marks(tree.body) & FULL_TIER)
        self._readings: set[tuple[Function | None, str]] = set()
        self._spans: set[tuple[Function | None, str]] = set()
        self._measuring: set[str] = set()
        """Functions that return spans."""
        self._telling: set[str] = set()
        """Functions that return readings."""
        self._visit(tree, [])
        carrying = [node for node in self._within if isinstance(node, CARRYING)]
        known = -1
        while known != (known := len(self._readings) + len(self._spans) + len(self._measuring) + len(self._telling)):
            for node in carrying:
                self._follow(node)

    def judgements(self) -> Iterator[Judgement]:
        for node, functions in self._within.items():
            if isinstance(node, JUDGING) and functions and not self._is_full(functions):
                tested = node.value if isinstance(node, ast.Return) else node.test
                for found in ast.walk(tested) if tested else ():
                    if isinstance(found, ast.Compare) and self._is_span(found, functions):
                        yield Judgement(self._path, functions[0].name, found.lineno, ast.unparse(found))

    def _is_full(self, functions: list[Function]) -> bool:
        return self._in_full or any(
            marks(function.decorator_list) & FULL_TIER or IS_TIMED in {each.arg for each in function.args.args}
            for function in functions
        )

    def _visit(self, node: ast.AST, functions: list[Function]) -> None:
        for child in ast.iter_child_nodes(node):
            self._within[child] = functions
            self._visit(child, [*functions, child] if isinstance(child, Function) else functions)

    def _follow(self, node: ast.AST) -> None:
        """Learn what is carried on by an assignment, a list or a return."""
        functions = self._within[node]
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._carry(target, node.value, functions)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            for argument in node.args:
                self._carry(node.func.value, argument, functions)
        elif isinstance(node, ast.Return) and functions and node.value and not isinstance(node.value, ast.Compare):
            for found, known in ((self._is_span, self._measuring), (self._is_reading, self._telling)):
                if found(node.value, functions):
                    known.add(functions[-1].name)

    def _carry(self, target: ast.expr, value: ast.expr, functions: list[Function]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, of in zip(target.elts, value.elts, strict=True):
                self._carry(each, of, functions)
            return
        function = functions[-1] if functions else None
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                if self._is_span(value, functions):
                    self._spans.add((function, name.id))
                elif self._is_reading(value, functions):
                    self._readings.add((function, name.id))

    def _is_reading(self, value: ast.expr, functions: list[Function]) -> bool:
        return any(
            (isinstance(node, ast.Call) and (ast.unparse(node.func) in CLOCKS or called(node) in self._telling))
            or (isinstance(node, ast.Name) and self._is_known(self._readings, node.id, functions))
            for node in ast.walk(value)
        )

    def _is_span(self, value: ast.expr, functions: list[Function]) -> bool:
        for node in ast.walk(value):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and self._is_reading(node, functions):
                return True
            if isinstance(node, ast.Name) and self._is_known(self._spans, node.id, functions):
                return True
            if isinstance(node, ast.Call) and called(node) in self._measuring | MEASURES:
                return True
            if isinstance(node, ast.Attribute) and node.attr in MEASURES:
                return True
        return False

    @staticmethod
    def _is_known(names: set[tuple[Function | None, str]], name: str, functions: list[Function]) -> bool:
        return any((function, name) in names for function in [None, *functions])


def called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def marks(nodes: list[ast.stmt] | list[ast.expr]) -> set[str]:
    """The markers of decorators, or of a whole module."""
    found = [node.value if isinstance(node, ast.Assign) else node for node in nodes if is_mark(node)]
    return {
        node.attr
        for each in found
        if not ast.unparse(each).startswith("pytest.mark.parametrize")
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    }


def is_mark(node: ast.stmt | ast.expr) -> TypeGuard[ast.expr | ast.Assign]:
    return isinstance(node, ast.expr) or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark")


@cache
def judgements() -> tuple[Judgement, ...]:
    return tuple(
        judgement
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if any(name in (text := file.read_text()) for name in (*TIMES[:-1], "time.time", *MEASURES, "getrusage"))
        for judgement in File(ast.parse(text), str(file.relative_to(ROOT))).judgements()
    )


def test_no_test_of_the_gate_judges_real_time() -> None:
    found = [each for each in judgements() if (each.path, each.function) not in ALLOWED]
    assert not found, "\n".join(map(str, found))


def test_the_allowed_uses_of_the_clock_exist() -> None:
    assert {(each.path, each.function) for each in judgements()} >= set(ALLOWED)


@pytest.mark.parametrize(
    ("body", "is_fine"),
    [
        ("began = time.monotonic(); f(); assert time.monotonic() - began < 5", False),
        ("began = perf_counter(); f(); took = perf_counter() - began; assert took < 5", False),
        ("began, n = time.monotonic(), 0; assert n == 0", True),
        ("took = []; b = time.time(); took.append(time.time() - b); assert min(took) < 1", False),
        ("assert processor_share(pid) < 0.5", False),
        ("assert client.gap_ms <= 1000", False),
        ("def took(): b = time.monotonic(); return time.monotonic() - b\n    assert took() < 1", False),
        ("end = time.monotonic() + 5\n    while time.monotonic() < end: pass", True),
        ("end = time.monotonic() + 5; assert time.monotonic() < end", True),
        ("began = time.monotonic(); print(time.monotonic() - began)", True),
        ("began = clock.monotonic_ms(); assert clock.monotonic_ms() - began == 5", True),
    ],
)
def test_the_rule(body: str, is_fine: bool) -> None:
    source = f"def test_it():\n    {body}"
    assert (not list(File(ast.parse(source)).judgements())) is is_fine
    marked = f"@pytest.mark.full\n@pytest.mark.alone\n{source}"
    assert not list(File(ast.parse(marked)).judgements())
    told = source.replace("test_it()", "test_it(is_timed)")
    assert not list(File(ast.parse(told)).judgements())
    partly = f"@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.full)])\n{source}"
    assert (not list(File(ast.parse(partly)).judgements())) is is_fine
