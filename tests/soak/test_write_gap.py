"""How long nothing is acknowledged when a leader goes: the tool that measures it beside Apache Kafka."""

from collections.abc import Mapping

import pytest

from tools.soak.cluster import SESSION_TIMEOUT_MS
from tools.soak.write_gap import WAYS, measure, table

SESSION_S = SESSION_TIMEOUT_MS / 1000
MOST_S = {"SIGTERM": 1.0, "SIGKILL": SESSION_S + 3.0, "SIGKILL, start": 4.0}
"""How long the gap of a partition may be at most."""

MOST_OF_MANY_S = {"SIGTERM": 3.0, "SIGKILL": SESSION_S + 6.0, "SIGKILL, start": SESSION_S}
"""The same with 1,500 partitions, of which the last one counts: some 500 get another leader at once, and the brokers,
the client and ZooKeeper share two processors."""


@pytest.mark.live
@pytest.mark.alone
@pytest.mark.timeout(1_800)
@pytest.mark.java
@pytest.mark.parametrize(
    ("rounds", "partitions", "most_s"),
    [
        (10, 1, MOST_S),
        (3, 1_500, MOST_OF_MANY_S),
    ],
)
def test_only_an_absent_broker_costs_a_session_timeout(
    rounds: int, partitions: int, most_s: Mapping[str, float]
) -> None:
    """Also where it has many logs to load before it is back."""
    gaps = measure(["barnabas"], rounds, partitions)["barnabas"]
    print(table({"barnabas": gaps}))
    assert {way: len(each) for way, each in gaps.items()} == dict.fromkeys(WAYS, rounds)
    assert {way: max(each) for way, each in gaps.items() if max(each) > most_s[way]} == {}
    assert max(gaps["SIGKILL"]) > SESSION_S / 3, "nobody waited for the end of a session"


def test_the_table_has_worst_and_median() -> None:
    ours = dict(zip(WAYS, ([1.0, 2.0, 6.0], [1.0], [1.0]), strict=True))
    theirs = dict(zip(WAYS, ([4.0, 8.0, 6.0], [2.0], [4.0]), strict=True))
    lines = table({"ours": ours, "theirs": theirs}).splitlines()
    assert lines[0] == (
        "|  | ours: worst, s | ours: median, s | theirs: worst, s | theirs: median, s"
        " | ours / theirs: worst | ours / theirs: median |"
    )
    assert lines[2] == "| SIGTERM | 6.00 | 2.00 | 8.00 | 6.00 | 0.75 | 0.33 |"
    assert table({"ours": ours}).splitlines()[4] == "| SIGKILL, start | 1.00 | 1.00 |"
