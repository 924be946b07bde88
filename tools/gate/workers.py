"""A pytest plugin for tests that run in parallel: the order of the files, the files that share a worker, and the
objects that garbage collection skips.

Some folders contain tests that mostly wait, others tests that compute. Therefore the files are put into a fixed order
that is independent of their folders: while some wait, others use the processors.

The tests with Spark's session come first, on one worker: starting Spark takes ten seconds of a processor, and its Java
gets faster with each test. Every other file goes to the next idle worker; those with the longest limits of time come
first, so that no worker is left alone with one of them at the end.
"""

import gc
import hashlib
from collections.abc import Generator, Iterable, Mapping
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK: Final = "compat_tests/spark/"


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns one file at a time to a worker, but all files of Spark at once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else file_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that has crashed the worker. Another worker gets the remaining tests, without that one, which
        would crash each worker in turn."""
        units = self.assigned_work[node].values()
        crashed = next(((unit, test) for unit in units for test, is_done in unit.items() if not is_done), None)
        if crashed is not None:
            unit, test = crashed
            unit[test] = True
        super().remove_node(node)
        return None if crashed is None else test


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def longest_limits(items: Iterable[pytest.Item]) -> Mapping[str, float]:
    """The longest limit that a test of each file has of its own, in seconds (`pytest.mark.timeout`)."""
    found: dict[str, float] = {}
    for item in items:
        if limit := item.get_closest_marker("timeout"):
            file = file_of(item.nodeid)
            found[file] = max(found.get(file, 0), limit.args[0])
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limits = longest_limits(items)

    def place(item: pytest.Item) -> tuple[bool, float, bytes]:
        file = file_of(item.nodeid)
        return not file.startswith(SPARK), -limits.get(file, 0), hashlib.sha256(file.encode()).digest()

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turn garbage collection off during collection: its objects stay, and searching them would take a tenth of the
    time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the twelve thousand tests from garbage collection: searching them each time would take a tenth of the
    time.
    """
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    return Scheduler(config, log)
