"""Time limits relative to the current speed of this machine: each is a multiple of a reference that is measured
together with the subject.

For tests of the full tier about time (markers `full` and `alone`). There are three references, each of some ten to
fifty milliseconds on an idle machine: `work_s` for computation, `wake_ups_s` for waits on an event loop or a socket,
`process_s` for the start of processes. `assert_within` measures the reference and the test's subject in turn, and
compares the minimum of each, because other programs on the machine can only add to a time.

A limit is about five times the time on an idle machine: a slow disk or a garbage collection passes, and a subject that
takes ten times as long fails.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

TRIES: Final = 10
"""The maximum number of measurements before the subject counts as too slow."""
_REFERENCES: Final = 3
"""The number of measurements of the reference before each try."""
_ROUNDS: Final = 40_000
_WAKE_UPS: Final = 200


def assert_within(times: float, reference: Callable[[], float], measured: Callable[[], float], what: str) -> None:
    """Assert that `measured`, which returns seconds, takes at most `times` as long as `reference` does.

    The minimum of up to `TRIES` tries counts; the first one within the limit ends them. Prints both times, and raises
    AssertionError with them if no try is within the limit.
    """
    taken_s: list[float] = []
    reference_s: list[float] = []
    while len(taken_s) < TRIES:
        reference_s += [reference() for _ in range(_REFERENCES)]
        taken_s.append(measured())
        if min(taken_s) <= times * min(reference_s):
            break
    ratio = min(taken_s) / min(reference_s)
    told = (
        f"{what}: {1000 * min(taken_s):.1f} ms, the least of {len(taken_s)}, is {ratio:.2f} times the reference of "
        f"{1000 * min(reference_s):.1f} ms ({reference.__name__}); at most {times:g} times are allowed"
    )
    print(told)
    assert ratio <= times, told


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """A function that runs an action and returns its seconds."""

    def measured() -> float:
        began_s = time.perf_counter()
        action()
        return time.perf_counter() - began_s

    return measured


def work_s() -> float:
    """A fixed amount of pure Python: calls, dictionaries, bytes and numbers, like a broker's work."""
    began_s = time.perf_counter()
    found: dict[int, bytes] = {}
    total = 0
    for number in range(_ROUNDS):
        found[number & 1023] = b"%d" % number
        total += len(found[number * 7 & 1023]) if number * 7 & 1023 in found else 1
    assert total > _ROUNDS
    return time.perf_counter() - began_s


def wake_ups_s() -> float:
    """Pass a callback to an event loop in another thread, and wait for it: 200 times."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="reference loop")
    thread.start()
    heard = threading.Event()
    began_s = time.perf_counter()
    for _ in range(_WAKE_UPS):
        heard.clear()
        loop.call_soon_threadsafe(heard.set)
        heard.wait()
    taken_s = time.perf_counter() - began_s
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return taken_s


def process_s() -> float:
    """A Python process that does nothing, from its start to its end."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return time.perf_counter() - began_s
