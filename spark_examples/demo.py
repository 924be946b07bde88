"""The demonstration: a year of flights through a broker, a Spark job and a consumer group, checked against the file.

    python -m spark_examples.demo                                     # starts a Barnabas broker for itself
    python -m spark_examples.demo --bootstrap-servers localhost:9092  # uses a broker that runs, of whatever make

It ends with 0 only if what came back agrees with the figures that pandas computes from the file.
"""

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from spark_examples.flights import FLIGHTS, Flight, csv_text, fetch_archive, read_flights
from tools.barnabas_process import BarnabasProcess

PARTITIONS = 4
FLIGHTS_PER_BATCH = 100_000
POLL_BATCH = 10_000
SUMMED = ("flights", "departed", "arrived", "late", "departure_delay", "arrival_delay")

Statistics = dict[str, dict[str, Any]]
"""`CARRIER|DATE` -> the fields of a line of statistics."""

console = Console()


def create_topics(bootstrap_servers: str, names: list[str]) -> None:
    """Create the demonstration's topics.

    Raises confluent_kafka.KafkaException.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, num_partitions=PARTITIONS) for name in names]).values():
        created.result(30)


def delete_topics(bootstrap_servers: str, names: list[str]) -> None:
    """Delete the demonstration's topics from a broker that outlives it."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for deleted in admin.delete_topics(names).values():
        deleted.result(30)


def produce_flights(bootstrap_servers: str, topic: str, flights: list[Flight]) -> None:
    """Produce every flight as JSON, keyed by carrier, as fast as it goes.

    Raises RuntimeError when a flight was not acknowledged.
    """
    producer = Producer({"bootstrap.servers": bootstrap_servers, "client.id": "flight-demo", "linger.ms": 20})
    failures: list[KafkaError] = []
    with tqdm(total=len(flights), desc="Producing flights", unit=" flights", unit_scale=True) as progress:

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)
            progress.update()

        for flight in flights:
            value = json.dumps(asdict(flight))
            while True:
                try:
                    producer.produce(topic, value, key=flight.carrier, on_delivery=delivered)
                    break
                except BufferError:  # the producer's queue is full: the broker sets the pace
                    producer.poll(0.1)
            producer.poll(0)
        unsent = producer.flush(120)
    if failures or unsent:
        raise RuntimeError(f"{len(failures)} flights failed ({failures[:1]}), {unsent} were not acknowledged")


def run_spark_job(bootstrap_servers: str, source: str, sink: str, folder: Path) -> int:
    """Run the streaming job from one topic to the other; returns the number of its micro-batches."""
    from spark_examples import flight_delays, pipeline

    options = flight_delays.parser().parse_args(
        [
            "--once",
            f"--bootstrap-servers={bootstrap_servers}",
            f"--input-topic={source}",
            f"--output-topic={sink}",
            f"--checkpoint={folder / 'checkpoint'}",
            f"--max-offsets-per-trigger={FLIGHTS_PER_BATCH}",
            # Carriers are spread over partitions unevenly: within a batch of a third of a year that makes days.
            "--lateness=60 days",
        ]
    )
    spark = pipeline.session_for(options, "flight delays")
    try:
        return sum(totals.batches for totals in pipeline.follow(flight_delays.start(spark, options)).values())
    finally:
        spark.stop()


def consume_statistics(bootstrap_servers: str, topic: str, group: str) -> tuple[Statistics, int]:
    """Read a topic to its end as a consumer group, and commit; returns the last line of each key and how many came.

    Raises RuntimeError when the committed offsets are not those of the end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
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
    """The same figures straight from the file, by pandas."""
    from io import StringIO

    from spark_examples.flight_delays import LATE_MINUTES

    table = pandas.read_csv(StringIO(csv_text(archive)))
    table["date"] = pandas.to_datetime(table[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    table["is_late"] = table["arr_delay"] >= LATE_MINUTES
    groups = table.groupby(["carrier", "date"]).agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        arrived=("arr_delay", "count"),
        late=("is_late", "sum"),
        departure_delay=("dep_delay", lambda delays: delays.sum(min_count=1)),
        arrival_delay=("arr_delay", lambda delays: delays.sum(min_count=1)),
        worst=("arr_delay", "max"),
    )
    return {
        f"{carrier}|{date}": {
            "carrier": carrier,
            "date": date,
            **{name: None if pandas.isna(figure) else int(figure) for name, figure in row.items()},
        }
        for (carrier, date), row in groups.iterrows()
    }


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


def demonstrate(bootstrap_servers: str, archive: Path, folder: Path, prefix: str) -> bool:
    """Run the whole pipeline through a broker; whether the result agrees with the file."""
    source, sink = f"{prefix}flights", f"{prefix}flight-delays"
    flights = list(read_flights(archive))
    assert len(flights) == FLIGHTS, f"{len(flights)} flights in the archive"
    create_topics(bootstrap_servers, [source, sink])
    started = time.monotonic()
    produce_flights(bootstrap_servers, source, flights)
    produced = time.monotonic()
    console.print(f"{len(flights):,} flights produced at {len(flights) / (produced - started):,.0f} a second.")
    batches = run_spark_job(bootstrap_servers, source, sink, folder)
    console.print(
        f"Spark worked them off in {batches} micro-batches, {time.monotonic() - produced:.0f} s with its start."
    )
    statistics, lines = consume_statistics(bootstrap_servers, sink, f"{prefix}flight-demo")
    console.print(f"{lines:,} lines of statistics read back by a consumer group, the last of each key counts.")
    show(statistics)
    return compare(statistics, expected_statistics(archive))


def main() -> int:
    """Command line of the demonstration."""
    parser = argparse.ArgumentParser(
        prog="make demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="a running broker (default: start one)")
    options = parser.parse_args()
    archive = fetch_archive()
    folder = Path(tempfile.mkdtemp(prefix="flight-demo-"))
    try:
        if options.bootstrap_servers is None:
            with BarnabasProcess() as broker:
                console.print(f"A Barnabas broker of its own listens on {broker.bootstrap_servers}.")
                agreed = demonstrate(broker.bootstrap_servers, archive, folder, prefix="")
        else:
            prefix = f"demo-{secrets.token_hex(4)}-"
            agreed = demonstrate(options.bootstrap_servers, archive, folder, prefix)
            delete_topics(options.bootstrap_servers, [f"{prefix}flights", f"{prefix}flight-delays"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
