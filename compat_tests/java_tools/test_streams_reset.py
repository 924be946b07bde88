"""kafka-streams-application-reset: an application starts again from the beginning, without its internal topics."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition

RECORDS = 5


@pytest.fixture
def application(make_topic: Any, group: str) -> tuple[str, str]:
    """The internal topics of the application whose id is the name of the group."""
    return make_topic(name=f"{group}-counts-changelog"), make_topic(name=f"{group}-by-word-repartition")


def test_reset(tools: Any, topic: str, group: str, produce: Any, member: Any, application: tuple[str, str]) -> None:
    produce(topic, [b"x"] * RECORDS)
    consumer = member(group, topic)
    consumer.commit(offsets=[TopicPartition(topic, 0, RECORDS)], asynchronous=False)
    arguments = ("--application-id", group, "--input-topics", topic)

    active = tools.attempt("kafka-streams-application-reset", *arguments)
    assert active.status == 1
    assert f"Consumer group '{group}' is still active" in active.out + active.err

    consumer.close()
    tools.run("kafka-streams-application-reset", *arguments, "--dry-run")
    topics = tools.run("kafka-topics", "--list").lines
    assert set(application) <= set(topics), "a dry run changes nothing"

    tools.run("kafka-streams-application-reset", *arguments, "--force")
    (row,) = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group))
    assert (row["TOPIC"], row["CURRENT-OFFSET"], row["LAG"]) == (topic, "0", str(RECORDS))
    assert not set(application) & set(tools.run("kafka-topics", "--list").lines)
