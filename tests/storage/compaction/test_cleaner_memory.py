"""A pass needs the memory of its map of keys (`log.cleaner.dedupe.buffer.size`), however many keys the log has."""

import tracemalloc

import pytest

from barnabas.storage.compaction import offset_map as cleaner_map
from barnabas.storage.compaction.cleaner import PassEnd, run_pass
from barnabas.storage.compaction.cleaner_manager import log_to_clean, make_job
from barnabas.storage.compaction.offset_map import ENTRY_BYTES, KeyMap
from barnabas.wire.records import Record, build_batch
from tests.storage.blocking import flush

pytestmark = pytest.mark.slow

RECORDS_PER_BATCH = 50
SMALL_MAP = 1000 * ENTRY_BYTES
LARGE_MAP = 1 << 30
MAP_FILE = cleaner_map.__file__
NOISE = 64 << 10
"""The bytes by which two runs of the same pass may differ: interned numbers, buffers of the reader."""


@pytest.mark.parametrize("slots", [3, 100, 10_007])
def test_a_map_of_keys_takes_no_more_than_its_slots(slots):
    tracemalloc.start()
    try:
        keys = KeyMap(slots)
        made = bytes_of_the_map()
        number = 0
        while keys.put(b"a key of some length, %d" % number, number):
            number += 1
        filled = bytes_of_the_map()
    finally:
        tracemalloc.stop()
    assert number == keys.capacity
    assert slots * ENTRY_BYTES // 2 <= made <= slots * ENTRY_BYTES + 4096
    assert filled <= made + 4096, "objects of the interpreter, not of the map"


def bytes_of_the_map():
    """The bytes that the map's own code has allocated: the process may have other threads."""
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=MAP_FILE)])
    return sum(trace.size for trace in found.traces)


def peak_of_a_pass(logs, topic, records, map_bytes):
    """Bytes that a pass over a log of so many keys takes at its peak, and how many of them it covered."""
    log = logs.log(topic, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=1 << 18)
    now_ms = logs.clock.now_ms()
    for start in range(0, records, RECORDS_PER_BATCH):
        numbers = range(start, start + RECORDS_PER_BATCH)
        found = [Record(each - start, now_ms, b"key %8d" % each, b"v" * 20) for each in numbers]
        logs.append_raw(log, build_batch(found))
    log.roll()
    flush(log)
    job = make_job(log_to_clean(log, None, now_ms), now_ms, map_bytes=map_bytes, map_load_factor=0.9)
    tracemalloc.start()
    try:
        for result in run_pass(log.context.cache.files, job, lambda _: None):
            if isinstance(result, PassEnd):
                return tracemalloc.get_traced_memory()[1], result.end_offset
    finally:
        tracemalloc.stop()
    raise AssertionError("a pass ends with its end")


def test_a_pass_over_more_keys_takes_no_more_memory(logs):
    few, few_covered = peak_of_a_pass(logs, "few", 8_000, SMALL_MAP)
    many, many_covered = peak_of_a_pass(logs, "many", 16_000, SMALL_MAP)
    assert few_covered == many_covered < 1000
    assert many <= few + NOISE
    # The measure measures: with room for all keys, it takes that room.
    all_of_them, covered = peak_of_a_pass(logs, "all", 16_000, LARGE_MAP)
    assert covered > 15_000  # the number of slots is a prime
    assert all_of_them >= many + 12_000 * ENTRY_BYTES
