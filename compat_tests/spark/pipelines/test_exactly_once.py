"""dedupe and retry_and_dead_letter: what comes out, over restarts."""

import json
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import StreamingQueryException

from barnabas.spark_examples import dedupe, pipeline, retry_and_dead_letter, sample
from barnabas.spark_examples.exactly_once import Outgoing, Unit, committed_progress
from compat_tests.spark.pipelines.conftest import (
    consume,
    forget_commits,
    options_for,
    sizes,
    waiting_batch,
)
from tools.waiting import PATIENCE_S, wait_until

HANDLER = "compat_tests.spark.pipelines.handlers:succeed_at"


def repeated(flights: pandas.DataFrame, times: int, apart: int) -> list[sample.Sample]:
    """Each flight so many times, so many records apart, with its number as JSON's id."""
    events = [
        sample.Sample(json.dumps({**json.loads(row.json), "id": number}), row.carrier, row.millis, (("h", b"x"),))
        for number, row in enumerate(flights.itertuples())
    ]
    return [each for at in range(0, len(events), apart) for each in events[at : at + apart] * times]


@sizes(1_000)
def test_repetitions_are_left_out_over_a_restart(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    events = repeated(flights, times=3, apart=100)
    arguments = (
        f"--input-topic={source}", f"--output-topic={sink}", f"--checkpoint={tmp_path}", "--id-field=id",
        "--window=400 days", f"--max-offsets-per-trigger={len(events) // 4}",
    )  # fmt: skip

    middle = len(events) // 2 + 50  # some of the repetitions come after the restart
    for part in (events[:middle], events[middle:]):
        sample.produce(cluster.bootstrap_servers, source, part)
        run_once(dedupe, *arguments)

    found = consume(cluster.bootstrap_servers, sink)
    counts = pandas.Series([json.loads(message.value())["id"] for message in found]).value_counts()
    assert counts.to_dict() == dict.fromkeys(range(len(flights)), 1)
    by_id = {json.loads(each.value)["id"]: each for each in events}
    for message in found[:200]:
        event = by_id[json.loads(message.value())["id"]]
        assert (message.key().decode(), message.timestamp()[1]) == (event.key, event.timestamp)
        assert message.headers() == [("h", b"x")]


def test_records_without_an_id_are_counted_over_all_batches(
    cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink, partitions=1)
    events = [sample.Sample(json.dumps({"id": number // 2}), "k", 1) for number in range(6)]
    events += [sample.Sample(text, "k", 1) for text in ('{"ident": 1}', "no JSON")]
    sample.produce(cluster.bootstrap_servers, source, events)
    arguments = (f"--input-topic={source}", f"--output-topic={sink}", "--max-offsets-per-trigger=3")

    for id_field, lacking, status in (("id", 2, 0), ("idd", 8, 1)):
        more = (*arguments, f"--checkpoint={tmp_path / id_field}", f"--id-field={id_field}")
        totals = run_once(dedupe, *more)
        assert totals[dedupe.QUERY].observed == {dedupe.IDS: Counter(records=8, with_id=8 - lacking)}
        capsys.readouterr()
        assert dedupe.judge(options_for(dedupe, cluster.bootstrap_servers, *more), totals) == status
        told = f"{lacking} of 8 records have no field {id_field}: each was taken for an event of its own.\n"
        assert capsys.readouterr().err == told
    assert len(consume(cluster.bootstrap_servers, sink)) == (3 + 2) + 8


@pytest.mark.parametrize(
    "text", ["0 seconds", "1 second", "1.5 seconds", "INTERVAL 2 Minutes 30 seconds", "500 milliseconds"]
)
def test_times_that_spark_takes(spark: Any, text: str) -> None:
    assert pipeline.interval(text) == text
    spark._jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)


@pytest.mark.parametrize("text", ["soon", "1 month", "10", "seconds", "1.5 minutes", "1 second and a half"])
def test_times_that_spark_does_not_take(spark: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a time such as"):
        pipeline.interval(text)
    with pytest.raises(Exception, match=r"(?i)interval|month"):
        spark._jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)


@pytest.mark.full
def test_a_batch_that_spark_repeats_is_written_once(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    sample.produce(cluster.bootstrap_servers, source, repeated(flights.head(500), times=2, apart=100))
    arguments = (f"--input-topic={source}", f"--output-topic={sink}", f"--checkpoint={tmp_path}", "--id-field=id")
    [first] = run_once(dedupe, *arguments).values()

    forget_commits(tmp_path / dedupe.QUERY)
    [again] = run_once(dedupe, *arguments).values()

    assert first.rows == again.rows == 1000
    ids = [json.loads(message.value())["id"] for message in consume(cluster.bootstrap_servers, sink)]
    assert sorted(ids) == list(range(500))


@pytest.mark.full
def test_events_beyond_the_watermark_are_counted(
    cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink, partitions=1)
    arguments = (
        f"--input-topic={source}", f"--output-topic={sink}", f"--checkpoint={tmp_path}", "--window=1 day",
    )  # fmt: skip
    start = sample.millis("2013-01-10T00:00:00")
    sample.produce(cluster.bootstrap_servers, source, [sample.Sample("new", "a", start)])
    run_once(dedupe, *arguments)
    late = [sample.Sample("late", "b", start - 3 * 86_400_000), sample.Sample("in time", "c", start - 3_600_000)]
    sample.produce(cluster.bootstrap_servers, source, late)
    [totals] = run_once(dedupe, *arguments).values()

    assert totals.late == 1
    assert [message.value() for message in consume(cluster.bootstrap_servers, sink)] == [b"new", b"in time"]


@pytest.mark.parametrize("is_within", [False, True], ids=["before its transaction", "within its transaction"])
def test_a_task_that_was_given_up_writes_nothing(cluster: Any, topic_prefix: str, is_within: bool) -> None:
    sink, config = f"{topic_prefix}-out", {"bootstrap.servers": cluster.bootstrap_servers}
    sample.create_topics(cluster.bootstrap_servers, sink, partitions=1)

    def succeed() -> None:
        """Another task does the same, from the same progress on."""
        with Unit(config, topic_prefix, sink, 0) as successor:
            assert successor.progress == 1
            successor.commit([Outgoing(sink, None, b"successor")], 3)

    class Overtaken(list[Outgoing]):
        """Half of the records are produced when the other task comes."""

        def __iter__(self) -> Iterator[Outgoing]:
            first, second = super().__iter__()
            yield first
            assert given_up._producer.flush(PATIENCE_S) == 0
            succeed()
            yield second

    with Unit(config, topic_prefix, sink, 0) as given_up:
        given_up.commit([Outgoing(sink, None, b"before")], 1)
        records = [Outgoing(sink, None, b"given up")] * 2
        if not is_within:
            succeed()
        with pytest.raises(KafkaException) as raised:
            given_up.commit(Overtaken(records) if is_within else records, 2)

    assert raised.value.args[0].code() == KafkaError._FENCED
    assert [message.value() for message in consume(cluster.bootstrap_servers, sink)] == [b"before", b"successor"]
    everything = consume(cluster.bootstrap_servers, sink, isolation_level="read_uncommitted")
    assert [m.value() for m in everything].count(b"given up") == is_within
    assert committed_progress(config, topic_prefix, sink, 0) == 3


def retry_arguments(prefix: str, folder: Path) -> list[str]:
    return [
        f"--input-topic={prefix}", f"--output-topic={prefix}-out", f"--handler={HANDLER}", "--delays=0.2,0.4",
        f"--checkpoint={folder}", f"--name={prefix}",
    ]  # fmt: skip


def create_retry_topics(bootstrap_servers: str, prefix: str) -> None:
    names = (prefix, *(f"{prefix}-{suffix}" for suffix in ("retry-1", "retry-2", "out", "dead")))
    sample.create_topics(bootstrap_servers, *names, partitions=2)


def fates(count: int) -> list[sample.Sample]:
    """Records whose keys tell the handler what to do."""
    kinds = ("1", "1", "1", "2", "3", "never", "hopeless", "silent")
    return [sample.Sample(f"value {n}", f"{n}-{kinds[n % len(kinds)]}", headers=(("own", b"h"),)) for n in range(count)]


def expected_keys(samples: list[sample.Sample], *endings: str) -> Counter[str]:
    return Counter(each.key or "" for each in samples if (each.key or "").rpartition("-")[2] in endings)


def keys_in(bootstrap_servers: str, *topics: str) -> Counter[str]:
    return Counter(message.key().decode() for message in consume(bootstrap_servers, *topics))


@pytest.mark.full
def test_a_repeated_batch_of_the_handler_is_written_once(
    cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path
) -> None:
    servers, samples = cluster.bootstrap_servers, fates(800)
    create_retry_topics(servers, topic_prefix)
    sample.produce(servers, topic_prefix, samples)
    arguments = (*retry_arguments(topic_prefix, tmp_path), "--delays=")  # what fails once is dead
    [first] = run_once(retry_and_dead_letter, *arguments).values()

    forget_commits(tmp_path / topic_prefix)
    [again] = run_once(retry_and_dead_letter, *arguments).values()

    assert first.rows == again.rows == 800
    assert keys_in(servers, f"{topic_prefix}-out") == expected_keys(samples, "1")
    assert keys_in(servers, f"{topic_prefix}-dead") == expected_keys(samples, "2", "3", "never", "hopeless")


@pytest.mark.full
def test_headers_of_others_are_not_believed(cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path) -> None:
    servers = cluster.bootstrap_servers
    create_retry_topics(servers, topic_prefix)
    foreign = [
        sample.Sample("x", "a-1", headers=(("retry-attempt", b"many"), ("origin-topic", b"elsewhere"))),
        sample.Sample("x", "b-2", headers=(("retry-attempt", b"7"),)),
        sample.Sample("x", "c-never", headers=(("origin-topic", b"elsewhere"), ("reprocessed", b"often"))),
    ]
    far = b"9" * 15
    strays = [
        sample.Sample("x", "d-1", headers=(("retry-attempt", b"2"), ("retry-not-before", far))),
        sample.Sample("x", "e-1", headers=(("retry-attempt", b"two"), ("retry-not-before", b"tomorrow"))),
    ]
    sample.produce(servers, topic_prefix, foreign)
    sample.produce(servers, f"{topic_prefix}-retry-1", strays)
    arguments = (*retry_arguments(topic_prefix, tmp_path), "--delays=0.2")

    run_once(retry_and_dead_letter, *arguments)

    results = {message.key(): message.headers() for message in consume(servers, f"{topic_prefix}-out")}
    assert results == {b"a-1": None, b"b-2": None}
    dead = {message.key(): dict(message.headers()) for message in consume(servers, f"{topic_prefix}-dead")}
    told = {key: tuple(each[name] for name in ("origin-topic", "retry-attempt")) for key, each in dead.items()}
    here, retries = topic_prefix.encode(), f"{topic_prefix}-retry-1".encode()
    assert told == {b"c-never": (here, b"2"), b"d-1": (retries, b"0"), b"e-1": (retries, b"0")}

    run_once(retry_and_dead_letter, *arguments, "--reprocess")

    returned = [message.headers() for message in consume(servers, topic_prefix) if message.key() == b"c-never"]
    assert len(returned) == 2
    assert [("reprocessed", b"1")] in returned


def test_a_failure_ends_what_waits_elsewhere(spark: Any, cluster: Any, topic_prefix: str, tmp_path: Path) -> None:
    servers = cluster.bootstrap_servers
    create_retry_topics(servers, topic_prefix)
    arguments = (*retry_arguments(topic_prefix, tmp_path), "--delays=3600")
    options = options_for(retry_and_dead_letter, servers, *arguments)
    queries = retry_and_dead_letter.start(spark, options)
    sample.produce(servers, topic_prefix, [sample.Sample("x", "a-2")])
    wait_until(lambda: waiting_batch(tmp_path / f"{topic_prefix}-retry-1") is not None)

    sample.produce(servers, topic_prefix, [sample.Sample("x", "b-fatal")])
    with pytest.raises(StreamingQueryException, match="the worker is broken"):
        pipeline.follow(queries, options.stop)

    assert not any(query.isActive for query in queries)


def test_retries_dead_letters_and_their_return(cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path) -> None:
    servers, samples = cluster.bootstrap_servers, fates(800)
    create_retry_topics(servers, topic_prefix)
    sample.produce(servers, topic_prefix, samples)
    arguments = retry_arguments(topic_prefix, tmp_path)

    totals = run_once(retry_and_dead_letter, *arguments)

    retried = [f"{topic_prefix}-retry-{number}" for number in (1, 2)]
    assert {name: total.rows for name, total in totals.items()} == {
        topic_prefix: 800, **{topic: len(consume(servers, topic)) for topic in retried}
    }  # fmt: skip
    results = consume(servers, f"{topic_prefix}-out")
    assert Counter(message.key().decode() for message in results) == expected_keys(samples, "1", "2", "3")
    assert all(message.value() == message.value().upper() for message in results)
    assert all(message.headers() == [("own", b"h")] for message in results)
    assert keys_in(servers, f"{topic_prefix}-retry-1") == expected_keys(samples, "2", "3", "never")
    assert keys_in(servers, f"{topic_prefix}-retry-2") == expected_keys(samples, "3", "never")
    dead = consume(servers, f"{topic_prefix}-dead")
    assert Counter(message.key().decode() for message in dead) == expected_keys(samples, "never", "hopeless")
    came = {message.key(): message for message in consume(servers, topic_prefix)}
    for message in dead:
        headers = dict(message.headers())
        origin = came[message.key()]
        assert (headers["origin-topic"].decode(), int(headers["origin-partition"]), int(headers["origin-offset"])) == (
            topic_prefix, origin.partition(), origin.offset(),
        )  # fmt: skip
        hopeless = message.key().endswith(b"hopeless")
        assert headers["retry-attempt"] == (b"1" if hopeless else b"3")
        assert headers["error-class"] == (b"Hopeless" if hopeless else b"RuntimeError")
        assert headers["error-message"] == (b"no use" if hopeless else b"attempt 3")
        assert headers["own"] == b"h"
        assert message.value() == origin.value()

    firsts = {m.key(): int(dict(m.headers())["retry-not-before"]) for m in consume(servers, f"{topic_prefix}-retry-1")}
    for message in consume(servers, f"{topic_prefix}-retry-2"):
        tried_at = int(dict(message.headers())["retry-not-before"]) - 400
        assert tried_at >= firsts[message.key()]  # no retry came before its time

    run_once(retry_and_dead_letter, *arguments, "--reprocess")
    again = consume(servers, topic_prefix)[len(samples) :]
    back = [m for m in consume(servers, topic_prefix) if m.headers() and dict(m.headers()).get("reprocessed") == b"1"]
    assert len(again) == len(back) == len(dead)
    assert all(set(dict(message.headers())) == {"own", "reprocessed"} for message in back)
    run_once(retry_and_dead_letter, *arguments)
    twice = expected_keys(samples, "never", "hopeless") + expected_keys(samples, "never", "hopeless")
    assert keys_in(servers, f"{topic_prefix}-dead") == twice
