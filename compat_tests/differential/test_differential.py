"""Barnabas answers what Apache Kafka answers, but for the listed differences."""

import pytest

from compat_tests.differential.play import play
from compat_tests.differential.report import PAGE

REQUESTS_MIN = 7000
SOME = (
    "metadata_named", "produce_mixed", "fetch_limits", "delete_topics", "describe_configs", "group_life",
    "transaction_coordinator", "describe_transactions",
)  # fmt: skip
"""A scenario of each subject; the transactions' first one makes Kafka's topic for them."""
REQUESTS_OF_SOME_MIN = 300

pytestmark = pytest.mark.java


def test_known_differences_are_explained() -> None:
    outcome = play(SOME)
    assert outcome.failures() == []
    assert outcome.run.request_count > REQUESTS_OF_SOME_MIN


@pytest.mark.full
def test_every_difference_is_explained() -> None:
    outcome = play()
    assert outcome.failures() == []
    assert outcome.not_compared == []
    assert outcome.run.request_count > REQUESTS_MIN
    assert outcome.page == PAGE.read_text(), "docs/compatibility.md is out of date: make differential"
