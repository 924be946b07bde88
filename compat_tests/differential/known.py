"""The differences that are known and explained: each points to a row of docs/deviations.md."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compat_tests.differential.run import Finding


class KnownDifference(NamedTuple):
    """Where a difference may be found. Patterns are those of `fnmatch`; `row` is a phrase of the row that explains it."""

    row: str
    api: str
    path: str
    scenario: str = "*"
    request: str = "*"

    def covers(self, finding: "Finding") -> bool:
        return (
            fnmatchcase(finding.api, self.api)
            and fnmatchcase(finding.difference.path, self.path)
            and fnmatchcase(finding.scenario, self.scenario)
            and fnmatchcase(finding.request, self.request)
        )


KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference("APIs and versions that are not served", "ApiVersions", "api_keys/*"),
    KnownDifference("No features are advertised", "ApiVersions", "supported_features*"),
    KnownDifference("No features are advertised", "ApiVersions", "finalized_features*"),
    KnownDifference("eligible leader replicas", "CreateTopics", "topics/*/configs/min.insync.replicas/config_source"),
)


def explain(finding: "Finding") -> KnownDifference | None:
    """The known difference that covers a finding."""
    return next((known for known in KNOWN if known.covers(finding)), None)
