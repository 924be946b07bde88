"""The requests to both brokers, by subject."""

from collections.abc import Callable

from compat_tests.differential.run import Run
from compat_tests.differential.scenarios import acls, cluster, configs, groups, logs, topics, transactions

SCENARIOS: tuple[Callable[[Run], None], ...] = (
    *cluster.FIRST,
    *cluster.SCENARIOS,
    *logs.SCENARIOS,
    *topics.SCENARIOS,
    *configs.SCENARIOS,
    *acls.SCENARIOS,
    *groups.SCENARIOS,
    *cluster.LAST,
    *transactions.SCENARIOS,
)
