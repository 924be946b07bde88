"""The folder's session after a test that was interrupted."""

from typing import Any

import pytest
from pyspark import SparkContext

SLEEP_FOR_DAYS = b"c\nz:java.lang.Thread\nsleep\nL1000000000\ne\n"
"""A request as py4j sends it."""


class Interrupted(BaseException):
    """An exception like that of pytest's time limit, which is no Exception either."""


def begin_what_nobody_waits_for() -> None:
    """As a test does that is interrupted while Java works."""
    gateway: Any = SparkContext._gateway
    connection = gateway._gateway_client._get_connection()
    connection.socket.sendall(SLEEP_FOR_DAYS)
    gateway._gateway_client._give_back_connection(connection)
    raise Interrupted


@pytest.mark.full
def test_a_session_answers_after_an_interrupted_one(shared_spark: Any, request: pytest.FixtureRequest) -> None:
    former = shared_spark.session()
    assert shared_spark.session() is former
    ended = pytest.CallInfo.from_call(begin_what_nobody_waits_for, "call")
    assert ended.excinfo is not None
    assert ended.excinfo.type is Interrupted

    assert request.node.ihook.pytest_runtest_makereport(item=request.node, call=ended).failed

    assert shared_spark.session().range(3).count() == 3
