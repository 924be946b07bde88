"""Word counts, delays by day, enriched flights and the capacity report, against pandas."""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas
import pyspark
import pytest

from barnabas.spark_examples import capacity_report, enrich_join, flight_delays, sample, stream_wordcount
from barnabas.spark_examples.demo import expected_statistics
from barnabas.spark_examples.flights import fetch_archive, read_table
from barnabas.spark_examples.ivy import ivy_home, ivy_settings
from barnabas.spark_examples.java import find_java
from barnabas.spark_examples.session import CONNECTOR
from compat_tests.conftest import ROOT
from compat_tests.spark.pipelines.conftest import JAVA_OPTIONS, commits, consume, forget_commits, options_for, sizes
from tools.processes import children


def last_values(bootstrap_servers: str, topic: str) -> dict[str, Any]:
    """The newest value of each key, which holds JSON."""
    return {message.key().decode(): json.loads(message.value()) for message in consume(bootstrap_servers, topic)}


@sizes(2_000)
def test_words_are_counted_over_a_restart(
    cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    lines, words = f"{topic_prefix}-lines", f"{topic_prefix}-words"
    journeys = flights.carrier + " from " + flights.origin + " to " + flights.destination
    samples = [*sample.line_samples(), *(sample.Sample(each) for each in journeys)]
    sample.create_topics(cluster.bootstrap_servers, lines, words)
    arguments = (f"--input-topic={lines}", f"--output-topic={words}", f"--checkpoint={tmp_path}")

    middle = len(samples) // 2
    for half in (samples[:middle], samples[middle:]):
        sample.produce(cluster.bootstrap_servers, lines, half)
        [totals] = run_once(stream_wordcount, *arguments).values()
        assert totals.rows == len(half)

    text = pandas.Series([each.value for each in samples]).str.lower().str.split(r"[\W_]+", regex=True)
    expected = text.explode()[lambda each: each != ""].value_counts().to_dict()
    assert last_values(cluster.bootstrap_servers, words) == expected


def final_figures(spark: Any, path: Path) -> dict[str, Any]:
    """The figures that flight_delays wrote to Parquet, each carrier and day once."""
    rows = spark.read.parquet(str(path)).collect()
    assert len({(row.carrier, row.date) for row in rows}) == len(rows)
    return {f"{row.carrier}|{row.date}": row.asDict() for row in rows}


def delays_by_day(flights: pandas.DataFrame) -> dict[str, Any]:
    """The figures of flight_delays, by pandas from the columns carrier, date, departure_delay and arrival_delay."""
    groups = (
        flights.assign(is_late=flights.arrival_delay >= flight_delays.LATE_MINUTES)
        .groupby(["carrier", "date"])
        .agg(
            flights=("carrier", "size"),
            departed=("departure_delay", "count"),
            arrived=("arrival_delay", "count"),
            late=("is_late", "sum"),
            departure_delay=("departure_delay", lambda delays: delays.sum(min_count=1)),
            arrival_delay=("arrival_delay", lambda delays: delays.sum(min_count=1)),
            worst=("arrival_delay", "max"),
        )
    )
    return {
        f"{carrier}|{date}": {
            "carrier": carrier,
            "date": date,
            **{name: None if pandas.isna(figure) else int(figure) for name, figure in row.items()},
        }
        for (carrier, date), row in groups.iterrows()
    }


@pytest.mark.full
def test_the_demonstration_expects_what_pandas_computes() -> None:
    archive = fetch_archive()
    table = pandas.DataFrame(read_table(archive, "flights"))
    table["date"] = pandas.to_datetime(table[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    for ours, theirs in (("departure_delay", "dep_delay"), ("arrival_delay", "arr_delay")):
        table[ours] = pandas.to_numeric(table[theirs])
    assert expected_statistics(archive) == delays_by_day(table)


def over_by(lines: dict[str, Any], flights: pandas.DataFrame, lateness: str) -> dict[str, Any]:
    """The lines of days that are over when all flights have been seen."""
    watermark = pandas.Timestamp(flights.scheduled.max()) - pandas.Timedelta(lateness)
    ends = {key: pandas.Timestamp(line["date"]) + pandas.Timedelta("1D") for key, line in lines.items()}
    return {key: line for key, line in lines.items() if ends[key] <= watermark}


def as_samples(flights: pandas.DataFrame) -> list[sample.Sample]:
    return [sample.Sample(row.json, row.carrier, row.millis) for row in flights.itertuples()]


def moved(flight: Any, scheduled: str) -> sample.Sample:
    """The same flight at another time."""
    return sample.Sample(json.dumps({**json.loads(flight.json), "scheduled": scheduled}), flight.carrier)


@sizes(20_000)
def test_delays_by_day_with_late_flights(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink, final = f"{topic_prefix}-flights", f"{topic_prefix}-delays", tmp_path / "final"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    topics = (f"--input-topic={source}", f"--output-topic={sink}")
    arguments = (
        *topics, f"--output-path={final.as_uri()}", f"--checkpoint={tmp_path.as_uri()}/c", "--lateness=2 days"
    )  # fmt: skip

    sample.produce(cluster.bootstrap_servers, source, [*as_samples(flights), sample.Sample("no flight")])
    run_once(flight_delays, *arguments)

    expected = delays_by_day(flights)
    assert last_values(cluster.bootstrap_servers, sink) == expected
    over = over_by(expected, flights, "2D")
    assert over
    assert final_figures(spark, final) == over

    # One flight comes within its time and changes the early figures of its day, three of one carrier and day come too
    # late for anything, and count as one.
    some = next(flights.itertuples())
    times = [f"{flights.date.max()} 00:01:00", *["2013-01-01 12:00:00"] * 3]
    sample.produce(cluster.bootstrap_servers, source, [moved(some, each) for each in times])
    totals = run_once(flight_delays, *arguments)

    assert {name: total.late for name, total in totals.items()} == {"early-figures": 1, "final-figures": 1}
    more = [{**json.loads(some.json), "date": each[:10]} for each in times]
    corrected = delays_by_day(pandas.concat([flights, pandas.DataFrame(more[:1])]))
    assert last_values(cluster.bootstrap_servers, sink) == corrected
    assert final_figures(spark, final) == over

    flight_delays.recompute(spark, options_for(flight_delays, cluster.bootstrap_servers, "--recompute", *topics))
    repaired = delays_by_day(pandas.concat([flights, pandas.DataFrame(more)]))
    assert last_values(cluster.bootstrap_servers, sink) == repaired


@pytest.mark.full
def test_days_are_computed_anew_by_a_program(cluster: Any, start_program: Any, topic_prefix: str, flights: Any) -> None:
    source, sink = f"{topic_prefix}-flights", f"{topic_prefix}-delays"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    sample.produce(cluster.bootstrap_servers, source, as_samples(flights))
    topics = (f"--input-topic={source}", f"--output-topic={sink}")

    program = start_program("flight_delays", "--recompute", f"--bootstrap-servers={cluster.bootstrap_servers}", *topics)

    assert program.wait() == 0, program.log()
    assert f"Records went from {source} to {sink}." in program.log()
    assert last_values(cluster.bootstrap_servers, sink) == delays_by_day(flights)


@sizes(6_000)
def test_flights_joined_with_weather_airports_and_planes(
    cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    names = {name: f"{topic_prefix}-{name}" for name in ("flights", "weather", "enriched")}
    weather = sample.weather_samples(flights.hour.max())
    left_out = {index for index in range(len(weather)) if index % 10 == 0}
    weather = [each for index, each in enumerate(weather) if index not in left_out]  # flights without any weather
    sample.create_topics(cluster.bootstrap_servers, *names.values())
    arguments = (
        f"--flights-topic={names['flights']}", f"--weather-topic={names['weather']}", f"--checkpoint={tmp_path}/c",
        f"--output-topic={names['enriched']}", f"--airports={sample.write_table('airports', str(tmp_path))}",
        f"--planes={sample.write_table('planes', str(tmp_path))}", "--lateness=6 hours",
    )  # fmt: skip

    # The weather of the first half comes after its flights, most of that of the second half before them. The watermark
    # of a restarted query moves when both of its streams have brought something.
    middle = len(flights) // 2
    no_flight = sample.Sample("no flight")
    sample.produce(cluster.bootstrap_servers, names["flights"], [*as_samples(flights[:middle]), no_flight])
    run_once(enrich_join, *arguments)
    sample.produce(cluster.bootstrap_servers, names["weather"], weather[:-50])
    run_once(enrich_join, *arguments)
    sample.produce(cluster.bootstrap_servers, names["flights"], as_samples(flights[middle:]))
    sample.produce(cluster.bootstrap_servers, names["weather"], weather[-50:])
    run_once(enrich_join, *arguments)

    expected, may_wait = joined_by_pandas(flights, weather)
    found = [json.loads(message.value()) for message in consume(cluster.bootstrap_servers, names["enriched"])]
    counted = Counter(json.dumps(each, sort_keys=True) for each in found)
    assert counted - expected == Counter()
    assert all(key in may_wait for key in (expected - counted)), list(expected - counted)[:5]
    assert len(found) > 0.9 * len(flights)


def joined_by_pandas(flights: pandas.DataFrame, weather: list[sample.Sample]) -> tuple[Counter[str], set[str]]:
    """The joined rows as JSON, and those that wait for weather at the end of the input."""
    archive = fetch_archive()
    airports = pandas.DataFrame(read_table(archive, "airports"))[["faa", "name"]]
    planes = pandas.DataFrame(read_table(archive, "planes"))[["tailnum", "manufacturer", "model", "seats"]]
    observed = pandas.DataFrame([json.loads(each.value) for each in weather]).assign(observed=True)
    frame = (
        flights.drop(columns=["json", "millis"])
        .merge(observed, how="left", on=["origin", "hour"])
        .merge(airports.set_axis(["origin", "origin_name"], axis=1), how="left", on="origin")
        .merge(airports.set_axis(["destination", "destination_name"], axis=1), how="left", on="destination")
        .merge(planes.set_axis(["plane", *planes.columns[1:]], axis=1), how="left", on="plane")
    )
    newest = min(pandas.Timestamp(flights.hour.max()), pandas.Timestamp(observed.hour.max()))
    watermark = newest - pandas.Timedelta("6h")
    rows: Counter[str] = Counter()
    waiting: set[str] = set()
    for row in frame.to_dict("records"):
        known = {name: row[name] for name in enrich_join.COLUMNS if not pandas.isna(row[name])}
        for name in ("departure_delay", "arrival_delay", "seats"):
            if name in known:
                known[name] = int(known[name])
        text = json.dumps(known, sort_keys=True)
        rows[text] += 1
        if row["observed"] is not True and pandas.Timestamp(row["hour"]) >= watermark:
            waiting.add(text)
    return rows, waiting


@sizes(4_000)
def test_capacity_report(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path, mounted: str
) -> None:
    topics = [f"{topic_prefix}-flights", f"{topic_prefix}-weather"]
    probe_topic = f"{topic_prefix}-probe"
    records = {topics[0]: as_samples(flights), topics[1]: sample.weather_samples(flights.hour.max())}
    sample.create_topics(cluster.bootstrap_servers, *topics, probe_topic)
    arguments = (
        f"--topics={','.join(topics)}", f"--output={mounted}", "--probe-seconds=1", f"--probe-topic={probe_topic}",
    )  # fmt: skip

    for part in (slice(0, 1000), slice(1000, None)):  # the second run reads what the first one has not
        for topic in topics:
            sample.produce(cluster.bootstrap_servers, topic, records[topic][part])
        [totals] = run_once(capacity_report, *arguments).values()
        assert totals.rows == sum(len(each[part]) for each in records.values())
    # Killed after its sums were written: Spark repeats the micro-batches, and their records count once.
    forget_commits(tmp_path / "checkpoint" / capacity_report.QUERY)
    [again] = run_once(capacity_report, *arguments).values()
    assert again.rows == sum(map(len, records.values()))
    options = options_for(capacity_report, cluster.bootstrap_servers, *arguments)
    for seconds in (2.0, 1.0):  # the newest one is reported
        options.probe_seconds = seconds
        capacity_report.measure(spark, options)
    capacity_report.report(spark, options)

    frame = pandas.DataFrame(
        [
            (m.topic(), m.partition(), m.timestamp()[1] // 60_000, m.key(), len(m.key()) + len(m.value()))
            for m in consume(cluster.bootstrap_servers, *topics)
        ],
        columns=["topic", "partition", "minute", "key", "bytes"],
    )
    frame["size_from"] = 2 ** (frame.bytes.map(int.bit_length) - 1)

    def table(name: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = spark.read.parquet(f"{tmp_path}/report/{name}")
        if "minute" in columns:
            rows = rows.selectExpr("topic", "unix_millis(minute) div 60000 as minute", "messages", "bytes")
        return sorted(tuple(row) for row in rows.select(*columns, "messages", "bytes").collect())

    def by(*columns: str) -> list[tuple[Any, ...]]:
        grouped = frame.groupby(list(columns)).bytes.agg(["size", "sum"])
        return sorted(
            (*(index if isinstance(index, tuple) else (index,)), *row)
            for index, row in zip(grouped.index, grouped.itertuples(index=False), strict=True)
        )

    assert table("topics", "topic") == by("topic")
    [total] = spark.read.parquet(f"{tmp_path}/report/total").collect()
    assert (total.messages, total.bytes, total.minutes) == (len(frame), frame.bytes.sum(), frame.minute.nunique())
    assert total.peak_messages_per_minute == frame.minute.value_counts().max()
    assert table("minutes", "topic", "minute") == by("topic", "minute")
    assert table("sizes", "topic", "size_from") == by("topic", "size_from")
    partitions = table("partitions", "topic", "partition", "of_fair_share")
    assert [(*row[:2], *row[3:]) for row in partitions if row[3]] == by("topic", "partition")
    assert len(partitions) == 2 * sample.PARTITIONS  # those without a record, too: a share is one of all
    for topic, _, of_fair_share, messages, _ in partitions:
        assert of_fair_share == pytest.approx(messages * sample.PARTITIONS / len(records[topic]))
    heaviest = frame[frame.topic == topics[0]].key.value_counts().head(capacity_report.KEYS_SHOWN)
    keys = spark.read.parquet(f"{tmp_path}/report/keys").where(f"topic = '{topics[0]}'").orderBy("rank").collect()
    assert [row.messages for row in keys] == heaviest.tolist()
    assert {bytes(row.key): row.messages for row in keys} == frame[frame.topic == topics[0]].key.value_counts().loc[
        [bytes(row.key) for row in keys]
    ].to_dict()
    [latency] = spark.read.parquet(f"{tmp_path}/report/latencies").collect()
    assert latency.records == 100
    assert 0 < latency["p50"] <= latency["p99"] <= latency["p100"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7
    assert f"{len(records[topics[0]]):,}" in page
    assert "http" not in page


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem for path in Path(sample.__file__).parent.glob("*.py") if "\n    make spark NAME=" in path.read_text()
    ),
)
def test_each_pipeline_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib

    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"barnabas.spark_examples.{name}").parser().parse_args(["--help"])
    assert ended.value.code == 0
    assert "--bootstrap-servers" in capsys.readouterr().out


SHOWN = {
    "archive": r"1,044 +│ +│ 0 +│ complete",
    "capacity_report": r"flights +│ +2,000 .* weather +│ +166 ",
    "dedupe": r"events +│ 1998 +│ 666 .*unique-events +│ 666 +│ 666 ",
    "enrich_join": r"John F Kennedy Intl +│ 688 +│ 671 +│ 578 .* Newark Liberty Intl +│ 738 +│ 716 +│ 698 ",
    "flight_delays": r"MQ +│ 2013-01-01 +│ 78 +│ 78 +│ 76 +│ 34 +│ 1730 +│ 2532 +│ 851 ",
    "replay": r"2,000 records of flights",
    "retry_and_dead_letter": r"flights: 2,001 rows .*flights-retry-1: .*flights-retry-2: .*Records went from flights, "
    r"flights-retry-1, flights-retry-2 to checked-flights, flights-dead.*checked-flights +│ 1969 .*flights-dead +│ 32 ",
    "stream_wordcount": r"Records went from lines to words\..* airport +│ 636 ",
}
"""The output of each pipeline about 2,000 flights; the figures are pandas's."""
MORE = {
    "capacity_report": "--output={folder}",  # without it the report would stay, to be looked at
    "flight_delays": "--lateness=1 day",  # 2,000 flights are two and a half days: so the first one is over
}
"""Options of some."""


@pytest.mark.full
@pytest.mark.parametrize("name", SHOWN)
def test_each_pipeline_shows_itself_with_one_command(name: str, start_program: Any, tmp_path: Path) -> None:
    more = [MORE[name].format(folder=tmp_path)] if name in MORE else []
    program = start_program(name, "--sample-flights=2000", *more)

    assert program.wait() == 0, program.log()
    assert re.search(SHOWN[name], program.log(), re.DOTALL), program.log()


@pytest.mark.full
def test_workers_have_our_modules_from_the_driver(
    cluster: Any, start_program: Any, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master, workers and executors in processes of their own, and a handler that only they import.

    A signal stops the pipeline cleanly there, too.
    """
    home = tmp_path / "spark"  # executors have their folders below it
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    for name, value in {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    handler = tmp_path / "my_module.py"
    handler.write_text("import barnabas.wire\n\nhandle = lambda record: barnabas.wire.__file__.encode()\n")
    servers, names = cluster.bootstrap_servers, [f"{topic_prefix}{end}" for end in ("", "-out", "-dead")]
    sample.create_topics(servers, *names)
    sample.produce(servers, topic_prefix, [sample.Sample(f"{number}", f"{number}") for number in range(100)])
    program = start_program(
        "retry_and_dead_letter", "--master=local-cluster[2,1,512]", "--conf=spark.executor.memory=512m",
        f"--bootstrap-servers={servers}", f"--checkpoint={tmp_path}/c", f"--input-topic={topic_prefix}",
        f"--output-topic={topic_prefix}-out", "--delays=", f"--name={topic_prefix}",
        "--handler=my_module:handle", f"--conf=spark.submit.pyFiles={handler}",
    )  # fmt: skip
    program.wait_until(lambda: commits(tmp_path / "c" / topic_prefix))

    assert program.stop() == 0, program.log()

    values = [message.value().decode() for message in consume(servers, f"{topic_prefix}-out")]
    assert len(values) == 100
    assert all("barnabas.zip" in value for value in values), values[0]


@pytest.mark.full
def test_spark_submit(cluster: Any, topic_prefix: str, tmp_path: Path) -> None:
    """As on a cluster: from another folder, with the shared modules in a zip file, session and master from outside."""
    lines, words = f"{topic_prefix}-lines", f"{topic_prefix}-words"
    sample.create_topics(cluster.bootstrap_servers, lines, words)
    sample.produce(cluster.bootstrap_servers, lines, [sample.Sample("to be or not to be")])
    folder = Path(sample.__file__).parent
    write = [sys.executable, "-m", "barnabas.spark_examples.modules", tmp_path / "pipelines.zip"]
    children.run(write, cwd=ROOT, check=True)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        submit, "--master", "local[2]", "--packages", CONNECTOR, "--driver-memory", "512m",
        "--conf", JAVA_OPTIONS, "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.jars.ivy={ivy_home()}", "--conf", f"spark.jars.ivySettings={ivy_settings()}",
        "--py-files", tmp_path / "pipelines.zip", folder / "stream_wordcount.py",
        "--bootstrap-servers", cluster.bootstrap_servers, "--input-topic", lines, "--output-topic", words,
        "--checkpoint", tmp_path / "checkpoint", "--once",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().resolve().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_GATEWAY_PORT", None)

    done = children.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-4000:]
    assert last_values(cluster.bootstrap_servers, words) == {"to": 2, "be": 2, "or": 1, "not": 1}
