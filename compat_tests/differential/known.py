"""The differences that are known and explained: each points to a row of docs/deviations.md."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compat_tests.differential.run import Finding


class KnownDifference(NamedTuple):
    """Where a difference may be found; patterns are those of `fnmatch`.

    `row` is a phrase of the row of docs/deviations.md that explains it. `kafka_fails` asks for an answer in which Kafka
    says UNKNOWN_SERVER_ERROR somewhere.
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


UNFORESEEN = "Kafka answers UNKNOWN_SERVER_ERROR"
KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference("APIs and versions that are not served", "ApiVersions", "api_keys/*"),
    KnownDifference("features of KRaft", "ApiVersions", "supported_features*"),
    KnownDifference("features of KRaft", "ApiVersions", "finalized_features*"),
    KnownDifference("eligible leader replicas", "CreateTopics", "topics/*/configs/min.insync.replicas/config_source"),
    *(
        KnownDifference(UNFORESEEN, api, "*", kafka_fails=True)
        for api in ("Metadata", "Produce", "Fetch", "ListOffsets")
    ),
    KnownDifference("null instead of records", "Produce", "", request='*"records": null*'),
    KnownDifference("while deleted records are still on disk", "ListOffsets", "*", scenario="delete_records"),
    KnownDifference("not UTF-8", "ApiVersions", "", scenario="broken_frames"),
    KnownDifference("compressed by the broker", "DescribeLogDirs", "*/produce_codecs-*/partition_size"),
)


def explain(finding: "Finding") -> KnownDifference | None:
    """The known difference that covers a finding."""
    return next((known for known in KNOWN if known.covers(finding)), None)
