"""Every wait of the broker is one of a timer (`broker/timers.py`, which bounds what it is told), or is bounded by
`clock.wait_s`, or takes a constant: no duration of a request or a setting gets to asyncio or a thread as it came.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
OWN_CLIENT = ("broker/client", "broker/cli/")
"""Commands and their client, which wait as long as whoever called them says."""
WAITS = {
    "call_later": 0,
    "call_at": 0,
    "wait_for": 1,
    "timeout": 0,
    "timeout_at": 0,
    "sleep": 0,
    "poll": 0,
    "wait": None,
}
"""Where each takes how long it waits; `wait` takes it by name."""
BOUNDED_ELSEWHERE = {
    ("broker/timers.py", "(left_ms + 0.5) / 1000"): "delay_ms",
    ("broker/timers.py", "at_ms - self._clock.monotonic_ms()"): "call_later",
    ("broker/network/reply_queue.py", "wait_s"): "doubled up to TRANSPORT_WAIT_S_MAX",
    ("broker/http/connections.py", "self._connections.bounds.exchange_timeout_s"): "EXCHANGE_TIMEOUT_S, but in tests",
    ("broker/http/pages.py", "self._next_page_at - loop.time()"): "REST_FACTOR times what a page took",
    ("controller/coordination/loop_handler.py", "timeout_ms"): "_POLL_MS_MAX",
    ("broker/upkeep/cleaner_process.py", "min(early_s, _LONGEST_SLEEP_S)"): "a constant",
}


class Wait(NamedTuple):
    """A call that waits, and for how long."""

    path: str
    line: int
    duration: ast.expr

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: waits for {ast.unparse(self.duration)}"


@cache
def waits() -> tuple[Wait, ...]:
    return tuple(wait for package in ("broker", "controller", "storage") for wait in waits_of(package))


def waits_of(package: str) -> Iterator[Wait]:
    for file in sorted((ROOT / package).rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if not path.startswith(OWN_CLIENT):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and (duration := waited_for(node)) is not None:
                    yield Wait(path, node.lineno, duration)


def waited_for(call: ast.Call) -> ast.expr | None:
    """The duration that a call waits for, unless it is one of a timer."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in WAITS:
        return None
    if ast.unparse(call.func.value).rpartition(".")[2].lstrip("_") == "timers":
        return None
    for keyword in call.keywords:
        if keyword.arg == "timeout":
            return keyword.value
    position = WAITS[call.func.attr]
    if position is None:
        # An event of a thread takes a duration; asyncio's functions and events take none, or one by name.
        is_asyncio = ast.unparse(call.func.value) == "asyncio"
        return call.args[0] if call.args and not is_asyncio else None
    return call.args[position] if len(call.args) > position else None


def is_bounded(duration: ast.expr) -> bool:
    if isinstance(duration, ast.Constant):
        return True
    if isinstance(duration, ast.Name | ast.Attribute):
        return ast.unparse(duration).rpartition(".")[2].isupper()
    return isinstance(duration, ast.Call) and ast.unparse(duration.func) in ("wait_s", "delay_ms", "interval_ms")


def test_every_wait_is_bounded() -> None:
    found = waits()
    assert len(found) > 15
    unbounded = [
        wait
        for wait in found
        if not is_bounded(wait.duration) and (wait.path, ast.unparse(wait.duration)) not in BOUNDED_ELSEWHERE
    ]
    assert not unbounded, "\n".join(map(str, unbounded))


def test_waits_bounded_elsewhere_exist() -> None:
    assert {(wait.path, ast.unparse(wait.duration)) for wait in waits()} >= set(BOUNDED_ELSEWHERE)


def test_the_controller_waits_by_the_timers_that_it_is_handed() -> None:
    """But for the connection to ZooKeeper, which is real whatever clock the broker lives by."""
    edges = ("controller/coordination/zookeeper.py", "controller/coordination/loop_handler.py")
    real = [
        str(wait)
        for wait in waits()
        if wait.path.startswith("controller/") and wait.path not in edges and ast.unparse(wait.duration) != "0"
    ]
    assert real == []


@pytest.mark.parametrize(
    ("source", "is_fine"),
    [
        ("loop.call_later(request.timeout_ms / 1000, f)", False),
        ("loop.call_later(wait_s(request.timeout_ms), f)", True),
        ("self._timers.call_later(request.timeout_ms, f)", True),
        ("asyncio.wait_for(f, timeout_s)", False),
        ("asyncio.wait(fs, timeout=max(0, timeout_ms) / 1000)", False),
        ("asyncio.timeout(config.request_timeout_ms)", False),
        ("time.sleep(REST_S)", True),
        ("event.wait(seconds)", False),
        ("asyncio.sleep(0)", True),
    ],
)
def test_the_rule(source: str, is_fine: bool) -> None:
    [call] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and waited_for(node)] or [None]
    assert (call is None or is_bounded(waited_for(call))) is is_fine
