"""The meaning of the options of commands."""

import pytest

from barnabas.broker.cli.values import topic_partitions


@pytest.mark.parametrize(
    ("entries", "partitions"),
    [
        (["x:1", "x:0"], {0, 1}),
        (["x:9,2", "x:0,2"], {0, 2, 9}),
        (["x", "x:0"], None),
        (["x:0", "x"], None),
    ],
)
def test_a_topic_that_is_given_twice_has_the_partitions_of_both(
    entries: list[str], partitions: set[int] | None
) -> None:
    assert topic_partitions([*entries, "y:7"], "TOPIC") == {"x": partitions, "y": {7}}
