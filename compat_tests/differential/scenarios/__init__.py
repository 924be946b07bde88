"""What both brokers are asked, by subject."""

from collections.abc import Callable

from compat_tests.differential.run import Run
from compat_tests.differential.scenarios import cluster, configs, groups, logs, quotas, topics, transactions

SCENARIOS: tuple[Callable[[Run], None], ...] = (
    *cluster.FIRST,
    *cluster.SCENARIOS,
    *logs.SCENARIOS,
    *topics.SCENARIOS,
    *configs.SCENARIOS,
    *groups.SCENARIOS,
    *quotas.SCENARIOS,
    *cluster.LAST,
    *transactions.SCENARIOS,
)
