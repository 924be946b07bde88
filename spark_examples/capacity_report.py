"""A report on the load of a queue: messages, bytes, sizes by topic and minute, hot partitions, heavy keys, latency.

    make spark NAME=capacity_report
    python -m barnabas.spark_examples.capacity_report --bootstrap-servers localhost:9092 --topics orders,payments \\
        --output /data/capacity --probe-seconds 30

Each micro-batch is summed up by itself and written as Parquet under its number: a batch that a crash cut off replaces
its own lines, and what was read once is never read again. The report is made of these sums: as tables at the terminal,
as Parquet (OUTPUT/report/*), and as one HTML page (OUTPUT/report.html) that needs nothing else. With --once it is made
when all that is there has been read, otherwise every --report-every seconds. A micro-batch leaves two small files of
sums: what runs for months wants a long --trigger.

Minutes are those of the records' timestamps. Sizes are bytes of key and value. Keys are counted exactly for the 1,000
most frequent ones of each micro-batch and topic, so that a key which is heavy is found, and a light one may be missing.

--probe-seconds measures latency from end to end, before each report: a producer and a consumer on this machine send
records through a topic of their own, which is made if it is not there, --probe-rate a second, and compare the clock at
the call of produce() with the one at the arrival. All measurements are kept, the newest is reported. The target is
--target-messages a day, in all topics together, and --target-latency-ms for 99 of 100 records. The driver needs
confluent-kafka.
"""

import argparse
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.table import Table

from barnabas.spark_examples import charts, pipeline
from barnabas.spark_examples.filesystem import FileSystem
from barnabas.spark_examples.signals import stop_signals
from barnabas.spark_examples.topics import Topics, chosen

KEYS_PER_BATCH = 1_000
KEYS_SHOWN = 10
POINTS = 400
MINUTES_PER_DAY = 24 * 60
PERCENTILES = (50, 90, 99, 99.9, 100)
QUERY = "capacity"

MINUTES = "topic string, partition int, minute timestamp, size_from bigint, messages bigint, bytes bigint, batch bigint"
KEYS = "topic string, key binary, messages bigint, bytes bigint, batch bigint"
LATENCIES = "milliseconds double, probe string"


# --- sums of micro-batches ----------------------------------------------------------------------------------------


def minute_sums(records: DataFrame) -> DataFrame:
    """Messages and bytes by topic, partition, minute and size; sizes by powers of two, named by their smallest."""
    size_from = f.when(f.col("size") == 0, 0).otherwise(f.pow(f.lit(2), f.floor(f.log2("size"))))
    return (
        records.withColumn("size", f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0)))
        .groupBy(
            "topic", "partition", f.date_trunc("minute", "timestamp").alias("minute"),
            size_from.cast("bigint").alias("size_from"),
        )
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    )  # fmt: skip


def key_sums(records: DataFrame) -> DataFrame:
    """Messages and bytes of the most frequent keys of each topic."""
    size = f.length("key") + f.coalesce(f.length("value"), f.lit(0))
    counted = records.where("key is not null").groupBy("topic", "key")
    rank = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("messages"), "key"))
    sums = counted.agg(f.count("*").alias("messages"), f.sum(size).alias("bytes"))
    return sums.withColumn("rank", rank).where(f.col("rank") <= KEYS_PER_BATCH).drop("rank")


def write_sums(output: str, batch: DataFrame, batch_id: int) -> None:
    """Write a micro-batch's sums in place of those that an interrupted attempt left."""
    batch.persist()
    for name, sums in (("minutes", minute_sums(batch)), ("keys", key_sums(batch))):
        sums.coalesce(1).write.mode("overwrite").parquet(f"{output}/sums/{name}/batch={batch_id}")
    batch.unpersist()


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start summing up. The checkpoint belongs to the sums, and lies beside them."""
    options.checkpoint = f"{options.output}/checkpoint"
    records = pipeline.read_topics(spark, options)
    output = options.output
    writer = records.writeStream.foreachBatch(lambda batch, batch_id: write_sums(output, batch, batch_id))
    return [pipeline.start_query(writer, options, QUERY)]


# --- latency ------------------------------------------------------------------------------------------------------


def probe(options: argparse.Namespace) -> list[float]:
    """Milliseconds from produce() to the consumer, of every probe record.

    Raises RuntimeError when some do not arrive within ten seconds.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    config = pipeline.client_options(options)
    place = TopicPartition(options.probe_topic, 0)
    consumer = Consumer({**config, "group.id": "capacity-probe", "enable.auto.commit": False})
    producer = Producer({**config, "linger.ms": 0})
    count = int(options.probe_seconds * options.probe_rate)
    token = secrets.token_hex(8)
    try:
        place.offset = consumer.get_watermark_offsets(place, timeout=30)[1]
        consumer.assign([place])
        sender = threading.Thread(target=_send_probes, args=(producer, options, token, count))
        sender.start()
        latencies: list[float] = []
        silent_since = time.monotonic()
        while len(latencies) < count:
            message = consumer.poll(0.5)
            now = time.perf_counter_ns()
            if message is not None and message.error() is None:
                silent_since = time.monotonic()
                sent_by, _, sent_at = (message.value() or b"").decode().partition(":")
                latencies += [(now - int(sent_at)) / 1e6] if sent_by == token else []
            elif time.monotonic() - silent_since > 10:
                raise RuntimeError(f"only {len(latencies)} of {count} probe records arrived")
        sender.join()
    finally:
        consumer.close()
    return latencies


def _send_probes(producer: Any, options: argparse.Namespace, token: str, count: int) -> None:
    begin = time.perf_counter()
    for number in range(count):
        ahead = begin + number / options.probe_rate - time.perf_counter()
        if ahead > 0:
            producer.poll(ahead)
            time.sleep(max(0.0, begin + number / options.probe_rate - time.perf_counter()))
        producer.produce(options.probe_topic, f"{token}:{time.perf_counter_ns()}", partition=0)
    producer.flush(30)


def write_latencies(spark: SparkSession, output: str, latencies: Sequence[float]) -> None:
    """Keep what a probe measured, under the time of its end."""
    frame = spark.createDataFrame([(each,) for each in latencies], "milliseconds double").coalesce(1)
    now = f.date_format(f.current_timestamp(), "yyyy-MM-dd'T'HH-mm-ss.SSS'Z'")
    frame.withColumn("probe", now).write.mode("append").partitionBy("probe").parquet(f"{output}/sums/latencies")


def measure(spark: SparkSession, options: argparse.Namespace) -> None:
    """Probe, if that is wanted."""
    if options.probe_seconds:
        write_latencies(spark, options.output, probe(options))


# --- the report ---------------------------------------------------------------------------------------------------


def read_sums(spark: SparkSession, output: str, name: str, schema: str) -> DataFrame:
    """The sums of all micro-batches; empty if there was none."""
    path = f"{output}/sums/{name}"
    if not FileSystem(spark).exists(path):
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(path)


def partitions_of_cluster(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """Every partition that there is: those without a record count in a fair share, too."""
    from confluent_kafka.admin import AdminClient

    topics = AdminClient({**pipeline.client_options(options)}).list_topics(timeout=30).topics
    rows = [(name, number) for name, topic in topics.items() for number in topic.partitions]
    return spark.createDataFrame(rows, "topic string, partition int")


def summaries(spark: SparkSession, options: argparse.Namespace) -> dict[str, DataFrame]:
    """The report's figures: `topics`, `total`, `minutes`, `sizes`, `partitions`, `keys`, `latencies`."""
    sums = read_sums(spark, options.output, "minutes", MINUTES)
    keys = read_sums(spark, options.output, "keys", KEYS)
    total = (f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    minutes = sums.groupBy("topic", "minute").agg(*total)
    existing = partitions_of_cluster(spark, options).join(sums.select("topic").distinct(), "topic")
    partitions = sums.groupBy("topic", "partition").agg(*total).join(existing, ["topic", "partition"], "full").fillna(0)
    by_topic = Window.partitionBy("topic")
    fair = f.avg("messages").over(by_topic)
    load = (
        *total, f.count("*").alias("minutes"), f.min("minute").alias("first_minute"),
        f.max("minute").alias("last_minute"), f.max("messages").alias("peak_messages_per_minute"),
        f.max("bytes").alias("peak_bytes_per_minute"),
    )  # fmt: skip
    topics = minutes.groupBy("topic").agg(*load)
    heavy = keys.groupBy("topic", "key").agg(*total).join(topics.selectExpr("topic", "messages as all"), "topic")
    rank = f.row_number().over(by_topic.orderBy(f.desc("messages"), "key"))
    latencies = read_sums(spark, options.output, "latencies", LATENCIES)
    newest = latencies.join(latencies.agg(f.max("probe").alias("probe")), "probe")
    each = f.col("bytes") / f.col("messages")
    return {
        "topics": topics.withColumn("bytes_per_message", each).orderBy("topic"),
        "total": minutes.groupBy("minute").agg(*total).agg(*load).withColumn("bytes_per_message", each),
        "minutes": minutes.orderBy("topic", "minute"),
        "sizes": sums.groupBy("topic", "size_from").agg(*total).orderBy("topic", "size_from"),
        "partitions": partitions.withColumn("of_fair_share", f.col("messages") / fair).orderBy("topic", "partition"),
        "keys": heavy.withColumn("share", f.col("messages") / f.col("all")).drop("all")
        .withColumn("rank", rank).where(f.col("rank") <= KEYS_SHOWN).orderBy("topic", "rank"),
        "latencies": newest.selectExpr(
            *(f"percentile(milliseconds, {part / 100}) as `p{part:g}`" for part in PERCENTILES),
            "count(*) as records", "max(probe) as probe",
        ),
    }  # fmt: skip


def report(spark: SparkSession, options: argparse.Namespace) -> None:
    """Write the report and print it."""
    rows: dict[str, list[Any]] = {}
    traffic: list[str] = []
    for name, frame in summaries(spark, options).items():
        frame.coalesce(1).write.mode("overwrite").parquet(f"{options.output}/report/{name}")
        written = spark.read.schema(frame.schema).parquet(f"{options.output}/report/{name}")
        if name == "minutes":  # of years: too many for the driver
            traffic = traffic_plots(written)
        else:
            rows[name] = written.collect()
    tables = report_tables(rows, options)
    for title, columns, lines in tables:
        _print_table(title, columns, lines)
    parts = [*(charts.table(*each) for each in tables), *traffic, *report_plots(rows)]
    introduction = (
        f"The target is {options.target_messages:,} messages a day "
        f"({options.target_messages / MINUTES_PER_DAY:,.0f} a minute) in under {options.target_latency_ms:g} ms."
    )
    html = charts.page("Capacity of the queue", introduction, parts)
    FileSystem(spark).write_text(f"{options.output}/report.html", html)
    pipeline.console.print(f"The page is {options.output}/report.html, the figures are in {options.output}/report.")


Lines = list[tuple[object, ...]]


def report_tables(rows: dict[str, list[Any]], options: argparse.Namespace) -> list[tuple[str, tuple[str, ...], Lines]]:
    """Titles, columns and lines."""
    wanted = options.target_messages / MINUTES_PER_DAY
    loads = [(row.topic, row) for row in rows["topics"]] + [("all", row) for row in rows["total"] if row.messages]
    topics: Lines = [
        (
            name, row.messages, row.bytes, float(row.bytes_per_message), row.peak_messages_per_minute,
            f"{row.peak_messages_per_minute / wanted:.2%}",
        )
        for name, row in loads
    ]  # fmt: skip
    quiet = [name for name in chosen(options) if name not in {row.topic for row in rows["topics"]}]
    topics += [(name, 0, 0, 0.0, 0, f"{0:.2%}") for name in quiet]
    partitions: Lines = [
        (row.topic, row.partition, row.messages, row.bytes, f"{row.of_fair_share:.2f} x") for row in rows["partitions"]
    ]
    keys: Lines = [(row.topic, row.rank, _text(row.key), row.messages, f"{row.share:.1%}") for row in rows["keys"]]
    made = [
        ("Topics", ("topic", "messages", "bytes", "bytes each", "peak a minute", "peak, of the target"), topics),
        ("Partitions", ("topic", "partition", "messages", "bytes", "of a fair share"), partitions),
        ("Heaviest keys", ("topic", "rank", "key", "messages", "of the topic"), keys),
    ]
    [latency] = rows["latencies"]
    if latency.records:
        named: Lines = [
            (f"{each:g} %", float(latency[f"p{each:g}"]), _verdict(latency[f"p{each:g}"], options))
            for each in PERCENTILES
        ]
        title = f"Latency of {latency.records:,} probe records, {latency.probe}"
        made.append((title, ("of records", "ms at most", "target"), named))
    return made


def _verdict(milliseconds: float, options: argparse.Namespace) -> str:
    return "met" if milliseconds < options.target_latency_ms else "missed"


def _text(key: bytes) -> str:
    return bytes(key).decode(errors="backslashreplace")[:60]


def traffic_plots(minutes: DataFrame) -> list[str]:
    """Messages and bytes over time, averages over as many minutes as make a plot of POINTS points."""
    at = f.unix_seconds("minute").alias("at")
    [(first, last)] = minutes.agg(f.min(at), f.max(at)).collect()
    if first is None:
        return []
    width_min = max(1, (last - first + 60) // 60 // POINTS)
    slot = f.floor((f.unix_seconds("minute") - first) / (60 * width_min)).alias("slot")
    averages = [(f.sum(name) / width_min).alias(name) for name in ("messages", "bytes")]
    slots = minutes.groupBy("topic", slot).agg(*averages).collect()
    plots = []
    for name in ("messages", "bytes"):
        lines: dict[str, list[float]] = {}
        for row in slots:
            lines.setdefault(row.topic, [0.0] * ((last - first) // 60 // width_min + 1))[row.slot] = row[name]
        series = {
            topic: [(first + slot * width_min * 60, value) for slot, value in enumerate(line)]
            for topic, line in lines.items()
        }
        plots.append(charts.line_chart(f"{name.capitalize()} a minute", series, f"{name} a minute"))
    return plots


def size_label(size: int) -> str:
    """A size that is 0 or a power of two, in the greatest binary unit that it fills: 512 B, 2 KiB."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << exponent:
            return f"{size >> exponent} {unit}"
    return f"{size} B"


def report_plots(rows: dict[str, list[Any]]) -> list[str]:
    """The page's plots of sizes, partitions and latencies."""
    plots = []
    for topic in sorted({row.topic for row in rows["sizes"]}):
        sizes = [row for row in rows["sizes"] if row.topic == topic]
        labels = [size_label(row.size_from) for row in sizes]
        plots.append(charts.bar_chart(f"{topic}: sizes from", labels, [row.messages for row in sizes], "messages"))
        shares = [row for row in rows["partitions"] if row.topic == topic]
        names = [str(row.partition) for row in shares]
        plots.append(charts.bar_chart(f"{topic}: partitions", names, [row.messages for row in shares], "messages"))
    [latency] = rows["latencies"]
    if latency.records:
        values = [latency[f"p{each:g}"] for each in PERCENTILES]
        plots.append(charts.bar_chart("Latency, percentiles", [f"{each:g} %" for each in PERCENTILES], values, "ms"))
    return plots


def _print_table(title: str, columns: Sequence[str], lines: Lines) -> None:
    made = Table(title=title)
    for column in columns:
        made.add_column(column)
    for line in lines:
        made.add_row(*(f"{value:,.1f}" if isinstance(value, float) else _cell(value) for value in line))
    pipeline.print_table(made)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- the command line ---------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("capacity_report", __doc__)
    pipeline.add_stream_options(made, checkpoint=False)  # it lies beside the sums
    made.set_defaults(trigger="30 seconds")  # each micro-batch leaves a file of sums
    pipeline.add_topics_options(made, "flights,weather", "what to count")
    made.add_argument("--output", metavar="URI", help="where sums and report go")
    made.add_argument("--report-every", type=float, default=60, metavar="S", help="default: %(default)s")
    made.add_argument(
        "--probe-seconds", type=float, default=0, metavar="S", help="measure latency so long (default: do not)"
    )
    made.add_argument("--probe-rate", type=float, default=100, metavar="N", help="records a second (default: 100)")
    made.add_argument("--probe-topic", default="capacity-probe", metavar="TOPIC", help="made if it is not there")
    made.add_argument("--target-messages", type=int, default=1_000_000_000, metavar="N", help="a day (default: 1e9)")
    made.add_argument("--target-latency-ms", type=float, default=100, metavar="MS", help="default: %(default)s")
    return made


def needs(options: argparse.Namespace) -> Topics:
    """The topics that are counted, and one for probes."""
    made = (options.probe_topic,) if options.probe_seconds else ()
    return Topics(reads=chosen(options), pattern=options.topics_pattern or "", made=made)


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights and weather, and a topic for probes."""
    from barnabas.spark_examples import sample

    options.output = options.output or tempfile.mkdtemp(prefix="capacity-report-")  # to be looked at: it stays
    options.probe_seconds = options.probe_seconds or 5
    flights = sample.flight_samples(options.sample_flights)
    weather = sample.weather_samples(sample.last_hour(flights))
    sample.create_topics(options.bootstrap_servers, *options.topics.split(","), options.probe_topic)
    for topic, samples in zip(options.topics.split(","), (flights, weather), strict=False):
        sample.produce(options.bootstrap_servers, topic, samples)


def run(spark: SparkSession, options: argparse.Namespace, _: bool) -> int:
    """Sum up, probe and report; again and again, without `--once`."""
    with stop_signals() as stop:
        queries = start(spark, options)
        if options.once:
            totals = pipeline.follow(queries, stop)
        if not stop.is_set():
            measure(spark, options)  # in any case, so that a probe that fails is noticed at once
        if not options.once:
            reporter = threading.Thread(target=_report_repeatedly, args=(spark, options, stop), daemon=True)
            reporter.start()
            totals = pipeline.follow(queries, stop)
            stop.set()
            reporter.join()
        report(spark, options)
        pipeline.say_totals(totals, needs(options))
    return 0


def _report_repeatedly(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> None:
    while not stop.wait(options.report_every):
        try:
            measure(spark, options)
            report(spark, options)
        except Exception as problem:  # noqa: BLE001 - the next one may succeed, the last one tells if not
            pipeline.console.print(f"No report this time: {problem}", markup=False)


def main() -> int:
    """Run from the command line."""
    made = parser()
    options = made.parse_args()
    if options.bootstrap_servers is not None and options.output is None:
        made.error("--bootstrap-servers needs --output URI, where the report goes")
    return pipeline.run_program(made, options, prepare_sample, run, needs=needs, interrupted=0)


if __name__ == "__main__":
    sys.exit(main())
