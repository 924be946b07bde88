"""The parts of each tier: their tests, number of workers and environment.

A test's markers decide its part (`tests/README.md`); no test is named here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

WORKERS: Final = 4
"""Many tests wait most of the time: four workers keep two processors busy."""
ON_ZOOKEEPER: Final = MappingProxyType({"BARNABAS_COMPAT_TARGET": "barnabas-zookeeper"})
WITHOUT_UVLOOP: Final = MappingProxyType({"PYTHONPATH": str(Path(__file__).with_name("without_uvloop"))})


@dataclass(frozen=True)
class Part:
    """A selection of tests, run by one pytest."""

    name: str
    markers: str
    """pytest's marker expression."""
    paths: tuple[str, ...]
    workers: int = 0
    """Processes of pytest-xdist; 0 for none, so that no other test runs at the same time."""
    environment: Mapping[str, str] = field(default_factory=dict)
    test_s_max: int = 900
    """The limit of one test, after which its process ends and prints the stack of each thread."""


AT_LENGTH_S: Final = 3_900
"""Longer than the longest limit that a test has of its own (`pytest.mark.timeout`)."""
EVERYWHERE: Final = ("compat_tests", "tests")
ON_A_LOOP: Final = ("tests/broker", "tests/controller", "tests/testing")

GATE: Final = (
    Part("beside others", "not full and not alone", EVERYWHERE, WORKERS),
    Part("on ZooKeeper", "store and not full and not alone", ("compat_tests",), 2, ON_ZOOKEEPER),
)
FULL: Final = (
    # Property tests use other examples than in the gate.
    Part("at length", "(full or hypothesis) and not alone", EVERYWHERE, WORKERS, test_s_max=AT_LENGTH_S),
    Part("alone", "alone", EVERYWHERE, test_s_max=AT_LENGTH_S),
    # Left out, as it does not depend on the metadata store: Spark's own work, and tests that take long.
    Part("on ZooKeeper", "not full and not alone and not spark", ("compat_tests",), WORKERS, ON_ZOOKEEPER),
    Part("without uvloop", "not full and not alone", ON_A_LOOP, WORKERS, WITHOUT_UVLOOP),
)
TIERS: Final = MappingProxyType({"gate": GATE, "full": FULL})
