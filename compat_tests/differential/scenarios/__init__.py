"""The requests to both brokers, by subject."""

from collections.abc import Callable

from compat_tests.differential.run import Run
from compat_tests.differential.scenarios import (
    acls,
    cluster,
    configs,
    credentials,
    groups,
    logs,
    quotas,
    tokens,
    topics,
    transactions,
)

SCENARIOS: tuple[Callable[[Run], None], ...] = (
    *cluster.FIRST,
    *cluster.SCENARIOS,
    *logs.SCENARIOS,
    *topics.SCENARIOS,
    *configs.SCENARIOS,
    *acls.SCENARIOS,
    *credentials.SCENARIOS,
    *tokens.SCENARIOS,
    *groups.SCENARIOS,
    *quotas.SCENARIOS,
    *cluster.LAST,
    *transactions.SCENARIOS,
)
