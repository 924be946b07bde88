"""A pytest plugin for tests that run beside each other: in which order the files run, which of them one worker runs
after each other, and what Python's search for garbage leaves out.

Of the tests of a folder some wait most of the time and others compute. So the files are put into an order that has
nothing to do with their folders, the same each time: beside those that wait, others use the processors.

The tests with Spark's session come first, on one worker: starting Spark takes ten seconds of a processor, and its Java
is quicker with each test that it has run. Every other file is given to the next worker that has nothing to do.
"""

import gc
import hashlib
from collections.abc import Generator
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SPARK: Final = "compat_tests/spark/"


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """A worker gets a file at a time, but all files of Spark at once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else file_of(nodeid)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def place(nodeid: str) -> tuple[bool, bytes]:
    """Orders files."""
    return not nodeid.startswith(SPARK), hashlib.sha256(file_of(nodeid).encode()).digest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made meanwhile stays: to look through it for garbage would take a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The twelve thousand tests stay: looked through for garbage at each turn they would take a tenth of the time."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    return Scheduler(config, log)
