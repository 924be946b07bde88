"""Barnabas answers what Apache Kafka answers, but for the listed differences."""

import pytest

from compat_tests.differential.play import play
from compat_tests.differential.report import PAGE

REQUESTS_MIN = 7000


@pytest.mark.java
@pytest.mark.timeout(600)
def test_every_difference_is_explained() -> None:
    outcome = play()
    assert outcome.failures() == []
    assert outcome.not_compared == []
    assert outcome.run.request_count > REQUESTS_MIN
    assert outcome.page == PAGE.read_text(), "docs/compatibility.md is out of date: make differential"
