"""The demonstration: a year of flights through a broker, a Spark job and a consumer group, checked against the file.

    python -m barnabas.spark_examples.demo                                     # starts a Barnabas broker for itself
    python -m barnabas.spark_examples.demo --bootstrap-servers localhost:9092  # a broker that runs, of any make
    python -m barnabas.spark_examples.demo --days 7                            # the flights of a week

It ends with 0 only if what came back agrees with the figures computed from the file.
"""

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from barnabas.broker.client.errors import ClientError
from barnabas.spark_examples import sample
from barnabas.spark_examples.connection import add_connection_options, connect
from barnabas.spark_examples.flights import FLIGHTS, Flight, fetch_archive, read_flights, read_table
from barnabas.spark_examples.ivy import FetchFailed
from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.spark_examples.sample import Sample
from barnabas.spark_examples.signals import INTERRUPTED, end_with, raise_interrupts
from barnabas.spark_examples.topics import Topics, what_is_missing, with_ports
from barnabas.testing import Broker

PARTITIONS = 4
FLIGHTS_PER_BATCH = 100_000
POLL_BATCH = 10_000
DAYS = 365
COUNTED = ("flights", "departed", "arrived", "late")
MINUTES = ("departure_delay", "arrival_delay", "worst")
SUMMED = (*COUNTED, "departure_delay", "arrival_delay")

Statistics = dict[str, dict[str, Any]]
"""`CARRIER|DATE` -> the fields of a line of statistics."""

console = Console()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the demonstration: its addresses, and the settings of Spark's clients and of librdkafka for it."""

    bootstrap_servers: str
    kafka: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def settings(self) -> dict[str, str]:
        """librdkafka's settings."""
        return {"bootstrap.servers": self.bootstrap_servers, **dict(self.client)}


def delete_topics(cluster: Cluster, names: list[str]) -> None:
    """Delete the demonstration's topics from a broker that outlives it."""
    admin = AdminClient({**cluster.settings})
    for deleted in admin.delete_topics(names).values():
        deleted.result(30)


def produce_flights(cluster: Cluster, topic: str, flights: list[Flight]) -> None:
    """Produce every flight as JSON, keyed by carrier, as fast as it goes. Raises as `sample.produce` does."""
    shown = tqdm(flights, desc="Producing flights", unit=" flights", unit_scale=True)
    sample.produce(cluster.settings, topic, (Sample(json.dumps(asdict(each)), each.carrier) for each in shown))


def run_spark_job(cluster: Cluster, source: str, sink: str, folder: Path) -> int:
    """Run the streaming job from one topic to the other; returns the number of its micro-batches."""
    from barnabas.spark_examples import flight_delays, pipeline

    options = flight_delays.parser().parse_args(
        [
            "--once",
            f"--bootstrap-servers={cluster.bootstrap_servers}",
            *(f"--kafka={key}={value}" for key, value in cluster.kafka),
            f"--input-topic={source}",
            f"--output-topic={sink}",
            f"--checkpoint={folder / 'checkpoint'}",
            f"--max-offsets-per-trigger={FLIGHTS_PER_BATCH}",
            # Carriers are spread over partitions unevenly: within a batch of a third of a year that makes days.
            "--lateness=60 days",
        ]
    )
    with pipeline.session(options, "flight delays") as spark:
        return sum(totals.batches for totals in pipeline.follow(flight_delays.start(spark, options)).values())


def consume_statistics(cluster: Cluster, topic: str, group: str) -> tuple[Statistics, int]:
    """Read a topic to its end as a consumer group, and commit; returns the last line of each key and how many came.

    Raises RuntimeError when the committed offsets are not those of the end.
    """
    consumer = Consumer(
        {
            **cluster.settings,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions}
        consumer.subscribe([topic])
        statistics, count = _consume_until(consumer, sum(ends.values()))
        consumer.commit(asynchronous=False)
        committed = {each.partition: each.offset for each in consumer.committed(partitions, timeout=30)}
    finally:
        consumer.close()
    if any(committed[partition] != end for partition, end in ends.items() if end):
        raise RuntimeError(f"committed {committed}, but the topic ends at {ends}")
    return statistics, count


def _consume_until(consumer: Consumer, total: int) -> tuple[Statistics, int]:
    statistics: Statistics = {}
    count = 0
    with tqdm(total=total, desc="Consuming statistics", unit=" lines", unit_scale=True) as progress:
        while count < total:
            messages = consumer.consume(min(POLL_BATCH, total - count), timeout=30)
            if not messages:
                raise RuntimeError(f"only {count} of {total} lines of statistics arrived")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                statistics[key.decode()] = json.loads(value)
            count += len(messages)
            progress.update(len(messages))
    return statistics, count


def expected_statistics(archive: Path) -> Statistics:
    """The figures of flight_delays, computed from the file by a loop over its rows, without Spark."""
    from barnabas.spark_examples.flight_delays import LATE_MINUTES

    statistics: Statistics = {}
    for row in read_table(archive, "flights"):
        day = f"{row['year']}-{int(row['month'] or 0):02d}-{int(row['day'] or 0):02d}"
        line = {"carrier": row["carrier"], "date": day, **dict.fromkeys(COUNTED, 0), **dict.fromkeys(MINUTES)}
        line = statistics.setdefault(f"{row['carrier']}|{day}", line)
        departure, arrival = (None if row[name] is None else int(row[name] or 0) for name in ("dep_delay", "arr_delay"))
        line["flights"] += 1
        if departure is not None:
            line["departed"] += 1
            line["departure_delay"] = departure + (line["departure_delay"] or 0)
        if arrival is not None:
            line["arrived"] += 1
            line["late"] += arrival >= LATE_MINUTES
            line["arrival_delay"] = arrival + (line["arrival_delay"] or 0)
            line["worst"] = max(arrival, arrival if line["worst"] is None else line["worst"])
    return statistics


def show(statistics: Statistics) -> None:
    """Print the statistics, summed up per carrier; departure and arrival are averages."""
    table = Table(title="Flights from New York in 2013, delays in minutes")
    table.add_column("carrier")
    for name in ("days", "flights", "cancelled", "late", "departure", "arrival", "worst"):
        table.add_column(name, justify="right")
    for carrier in sorted({line["carrier"] for line in statistics.values()}):
        lines = [line for line in statistics.values() if line["carrier"] == carrier]
        total = {name: sum(line[name] or 0 for line in lines) for name in SUMMED}
        table.add_row(
            carrier,
            str(len(lines)),
            f"{total['flights']:,}",
            f"{total['flights'] - total['departed']:,}",
            f"{total['late'] / total['arrived']:.1%}",
            f"{total['departure_delay'] / total['departed']:.1f}",
            f"{total['arrival_delay'] / total['arrived']:.1f}",
            f"{max(line['worst'] for line in lines if line['worst'] is not None):,}",
        )
    console.print(table)


def compare(statistics: Statistics, expected: Statistics) -> bool:
    """Whether both hold the same figures; differences are printed."""
    different = [key for key in expected.keys() | statistics.keys() if expected.get(key) != statistics.get(key)]
    for key in sorted(different)[:10]:
        console.print(f"[red]{key}: expected {expected.get(key)}, got {statistics.get(key)}")
    figures = sum(len(line) - 2 for line in expected.values())
    if different:
        console.print(f"[red]{len(different)} of {len(expected)} carrier-days differ from the file.")
    else:
        console.print(f"[green]All {figures:,} figures of {len(expected):,} carrier-days agree with the file.")
    return not different


def demonstrate(cluster: Cluster, archive: Path, folder: Path, prefix: str, days: int) -> bool:
    """Run the whole pipeline through a broker, with so many days; whether the result agrees with the file."""
    source, sink = f"{prefix}flights", f"{prefix}flight-delays"
    flights = list(read_flights(archive))
    assert len(flights) == FLIGHTS, f"{len(flights)} flights in the archive"
    last = str(date(2013, 1, 1) + timedelta(days - 1))
    flights = [flight for flight in flights if flight.scheduled[:10] <= last]
    sample.create_topics(cluster.settings, source, sink, partitions=PARTITIONS)
    started = time.monotonic()
    produce_flights(cluster, source, flights)
    produced = time.monotonic()
    console.print(f"{len(flights):,} flights produced at {len(flights) / (produced - started):,.0f} a second.")
    batches = run_spark_job(cluster, source, sink, folder)
    console.print(
        f"Spark processed them in {batches} micro-batches, {time.monotonic() - produced:.0f} s with its start."
    )
    statistics, lines = consume_statistics(cluster, sink, f"{prefix}flight-demo")
    console.print(f"{lines:,} lines of statistics read back by a consumer group, the last of each key counts.")
    show(statistics)
    expected = expected_statistics(archive)
    return compare(statistics, {key: line for key, line in expected.items() if line["date"] <= last})


def main() -> int:
    """Command line of the demonstration."""
    parser = argparse.ArgumentParser(
        prog="demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT", type=with_ports, help="a running broker (default: start one)"
    )
    parser.add_argument(
        "--days", type=int, choices=range(1, DAYS + 1), default=DAYS, metavar="N", help="take the first N days only"
    )
    parser.set_defaults(kafka=[], client=[])
    add_connection_options(parser.add_argument_group("secured clusters"))
    options = parser.parse_args()
    raise_interrupts()
    try:
        connect(options)
        return run(options, options.days)
    except ClientError as problem:
        console.print(str(problem), markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return end_with(INTERRUPTED)
    except (JavaMissing, FetchFailed) as missing:
        console.print(str(missing), markup=False, highlight=False, soft_wrap=True)
        return 1


def run(options: argparse.Namespace, days: int = DAYS) -> int:
    """Demonstrate, on a broker of its own or on the cluster of the options; returns the exit status.

    Raises JavaMissing or FetchFailed, the first before anything is started.
    """
    find_java()
    if options.bootstrap_servers is not None and (missing := what_is_missing(options, Topics())):
        console.print(missing, markup=False, highlight=False, soft_wrap=True)
        return 1
    archive = fetch_archive()
    folder = Path(tempfile.mkdtemp(prefix="flight-demo-"))
    try:
        if options.bootstrap_servers is None:
            with Broker() as broker:
                console.print(f"A Barnabas broker of its own listens on {broker.bootstrap_servers}.")
                agreed = demonstrate(Cluster(broker.bootstrap_servers), archive, folder, "", days)
        else:
            cluster = Cluster(options.bootstrap_servers, tuple(options.kafka), tuple(options.client))
            prefix = f"demo-{secrets.token_hex(4)}-"
            agreed = demonstrate(cluster, archive, folder, prefix, days)
            delete_topics(cluster, [f"{prefix}flights", f"{prefix}flight-delays"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
