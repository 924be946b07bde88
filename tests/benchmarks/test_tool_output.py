"""The output of Kafka's tools; the samples are theirs."""

import pytest

from benchmarks.java_tools import parse_consumed, parse_produced
from benchmarks.spread import Spread, percentile

PRODUCED = """\
47403 records sent, 9392.3 records/sec (9.17 MB/sec), 147.2 ms avg latency, 1740.0 ms max latency.
100000 records sent, 14562.399884 records/sec (14.22 MB/sec), 409.92 ms avg latency, 1740.00 ms max latency, \
429 ms 50th, 974 ms 95th, 989 ms 99th, 1001 ms 99.9th.
"""
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
)
CONSUMED = (
    "2026-11-21 23:59:58:500, 2026-11-22 00:00:03:750, 195.3125, 37.2024, 200000, 38095.2, 3250, 2000, 97.6563, "
    "100000.0\n"
)


def test_a_producers_summary_is_its_last_line():
    produced = parse_produced(PRODUCED)
    assert (produced.records, produced.records_per_second, produced.mib_per_second) == (100_000, 14562.399884, 14.22)
    assert (produced.average_ms, produced.p50_ms, produced.p99_ms, produced.p999_ms) == (409.92, 429, 989, 1001)


def test_a_consumers_start_is_after_joining():
    consumed = parse_consumed(HEADER + CONSUMED)
    assert (consumed.records, consumed.mib) == (200_000, 195.3125)
    assert consumed.end_s - consumed.start_s == pytest.approx(2.0)


def test_output_without_a_summary_is_refused():
    with pytest.raises(ValueError, match="no summary"):
        parse_produced(PRODUCED.splitlines()[0])
    with pytest.raises(ValueError, match="no summary"):
        parse_consumed(HEADER)


def test_percentiles():
    values = list(range(100, 0, -1))
    assert [percentile(values, each) for each in (0, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert percentile([3], 50) == 3
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_spread():
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3)
    assert Spread.of([3, 1, 2]).relative == 1
