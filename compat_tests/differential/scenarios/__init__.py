"""What both brokers are asked, by subject."""

from collections.abc import Callable

from compat_tests.differential.run import Run
from compat_tests.differential.scenarios import cluster, logs

SCENARIOS: tuple[Callable[[Run], None], ...] = (
    *cluster.FIRST,
    *cluster.SCENARIOS,
    *logs.SCENARIOS,
    *cluster.LAST,
)
