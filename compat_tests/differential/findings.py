"""A difference that was found, and one that is known and explains it."""

from fnmatch import fnmatchcase
from typing import NamedTuple

from compat_tests.differential.values import Difference


class KnownDifference(NamedTuple):
    """Where a difference may be found; patterns are those of `fnmatch`.

    `row` is a phrase of the item of docs/deviations that explains it. `kafka_fails` asks for an answer in which
    Kafka says UNKNOWN_SERVER_ERROR somewhere.
    """

    row: str
    api: str
    path: str
    scenario: str = "*"
    request: str = "*"
    kafka_fails: bool = False

    def covers(self, finding: "Finding") -> bool:
        """Whether this explains a difference."""
        return (
            fnmatchcase(finding.api, self.api)
            and fnmatchcase(finding.difference.path, self.path)
            and fnmatchcase(finding.scenario, self.scenario)
            and fnmatchcase(finding.request, self.request)
            and (finding.kafka_fails or not self.kafka_fails)
        )


class Finding(NamedTuple):
    """A difference and where it was found."""

    scenario: str
    api: str
    version: int
    request: str
    difference: Difference
    kafka_fails: bool
    """Kafka's answer says UNKNOWN_SERVER_ERROR."""
    known: KnownDifference | None = None
