"""dedupe and retry_and_dead_letter: what comes out, over restarts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas

from compat_tests.spark.pipelines.conftest import consume
from spark_examples import dedupe, retry_and_dead_letter, sample

HANDLER = "compat_tests.spark.pipelines.handlers:succeed_at"


def repeated(flights: pandas.DataFrame, times: int, apart: int) -> list[sample.Sample]:
    """Each flight so many times, so many records apart, with its number as JSON's id."""
    events = [
        sample.Sample(json.dumps({**json.loads(row.json), "id": number}), row.carrier, row.millis, (("h", b"x"),))
        for number, row in enumerate(flights.itertuples())
    ]
    return [each for at in range(0, len(events), apart) for each in events[at : at + apart] * times]


def test_repetitions_are_left_out_over_a_restart(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    events = repeated(flights.head(3000), times=3, apart=100)
    arguments = (
        f"--input-topic={source}", f"--output-topic={sink}", f"--checkpoint={tmp_path}", "--id-field=id",
        "--window=30 days", "--max-offsets-per-trigger=2500",
    )  # fmt: skip

    for part in (events[:5050], events[5050:]):
        sample.produce(cluster.bootstrap_servers, source, part)
        run_once(dedupe, *arguments)

    found = consume(cluster.bootstrap_servers, sink)
    counts = pandas.Series([json.loads(message.value())["id"] for message in found]).value_counts()
    assert counts.to_dict() == dict.fromkeys(range(3000), 1)
    by_id = {json.loads(each.value)["id"]: each for each in events}
    for message in found[:200]:
        event = by_id[json.loads(message.value())["id"]]
        assert (message.key().decode(), message.timestamp()[1]) == (event.key, event.timestamp)
        assert message.headers() == [("h", b"x")]


def test_a_batch_that_spark_repeats_is_written_once(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, flights: Any, tmp_path: Path
) -> None:
    source, sink = f"{topic_prefix}-events", f"{topic_prefix}-unique"
    sample.create_topics(cluster.bootstrap_servers, source, sink)
    sample.produce(cluster.bootstrap_servers, source, repeated(flights.head(500), times=2, apart=100))
    arguments = (f"--input-topic={source}", f"--output-topic={sink}", f"--checkpoint={tmp_path}", "--id-field=id")
    run_once(dedupe, *arguments)
    noted = sorted((tmp_path / dedupe.QUERY / "commits").iterdir())

    for path in noted:
        path.unlink()  # as if Spark had been killed after the transactions, before its own commit
    run_once(dedupe, *arguments)

    ids = [json.loads(message.value())["id"] for message in consume(cluster.bootstrap_servers, sink)]
    assert sorted(ids) == list(range(500))


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

    assert totals.late_rows == 1
    assert [message.value() for message in consume(cluster.bootstrap_servers, sink)] == [b"new", b"in time"]


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


def test_retries_dead_letters_and_their_return(cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path) -> None:
    servers, samples = cluster.bootstrap_servers, fates(800)
    create_retry_topics(servers, topic_prefix)
    sample.produce(servers, topic_prefix, samples)
    arguments = retry_arguments(topic_prefix, tmp_path)

    run_once(retry_and_dead_letter, *arguments)

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
