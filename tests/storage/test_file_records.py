"""Reads that leave their batches in the file, for the kernel to send."""

import errno
import os
import random
import socket

import pytest

from barnabas.storage.errors import ReadWouldBlock
from barnabas.storage.file_records import REGION_BYTES_MIN
from barnabas.storage.segment_reader import ColdRead
from barnabas.wire.record_batch import iter_headers

SEGMENT_BYTES = 4 << 20
TO_FILL = 10 << 20
AT_MOST = 40_000
"""Bytes of a batch."""


@pytest.fixture
def dice():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def log(logs, dice):
    if not logs.files.reads_cached(str(logs.path)):
        pytest.skip("this file system does not tell what is in the page cache: all is copied")
    log = logs.log(segment_bytes=SEGMENT_BYTES)
    written = 0
    while written < TO_FILL:
        values = [bytes(dice.randrange(100, AT_MOST // 4)) for _ in range(dice.randrange(1, 4))]
        logs.append(log, *values)
        written += sum(map(len, values))
    return log


def sent(region):
    """The bytes that a peer receives that reads now and then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        found = bytearray()
        while len(found) < len(region):
            try:
                taken = region.send(ours.fileno(), len(found))
            except BlockingIOError:
                continue
            assert taken > 0
            while taken:
                chunk = theirs.recv(taken)
                found += chunk
                taken -= len(chunk)
        return bytes(found)


def region_of(log, offset, max_bytes=1 << 20, **settings):
    return log.read(offset, max_bytes, may_stay_in_file=True, **settings).region


def test_a_region_holds_what_a_copy_would_hold_but_for_the_end(log, tools, dice):
    found = 0
    for _ in range(200):
        offset = dice.randrange(log.log_end_offset)
        max_offset = dice.randrange(offset + 1, log.log_end_offset + 1)
        max_bytes = dice.randrange(REGION_BYTES_MIN, 2 << 20)
        copied = tools.read(log, offset, max_bytes, max_offset=max_offset)
        kept = log.read(offset, max_bytes, max_offset=max_offset, may_stay_in_file=True)
        if kept.region is None:
            assert kept.records == copied.records
            assert len(copied.records) < REGION_BYTES_MIN + AT_MOST + 4096 + 100
            continue
        found += 1
        got = sent(kept.region)
        assert got == bytes(copied.records[: len(got)]) == bytes(kept.region.read())
        assert len(got) >= len(copied.records) - AT_MOST - 4096 - 100
        base_offsets = tools.base_offsets(got)
        following = tools.base_offsets(copied.records)[len(base_offsets) :]
        true_next = following[0] if following else copied.next_offset
        assert kept.next_offset >= true_next, "aborted transactions are listed up to there"
    assert found > 50


def test_a_reader_that_continues_needs_no_search(log, logs, tools):
    """No byte before the returned ones is read, as a search from an index entry on would do."""
    positions = []
    logs.files.before["pread_cached"] = lambda _descriptor, _size, position: positions.append(position)
    offset, end = 0, log.log_end_offset
    read = bytearray()
    regions = 0
    while offset < end:
        positions.clear()
        data = log.read(offset, 1 << 20, may_stay_in_file=True)
        assert min(positions) == data.position
        regions += data.region is not None
        found = data.records if data.region is None else sent(data.region)
        read += found
        base_offsets = tools.base_offsets(found)
        last = tools.read(log, base_offsets[-1], 1)
        offset = last.next_offset
    assert regions > 6
    assert tools.base_offsets(read) == tools.read_all(log)


def test_a_wrong_index_misleads_no_reader_for_long(log, tools):
    """Kafka often sends a part of the last batch: readers ignore it."""
    segment = log.segments[0]
    index = segment.offset_index or log.context.indexes.get(segment.file)
    if index is None:
        tools.read(log, 5)  # brings it
        index = log.context.indexes.get(segment.file)
    for slot in range(len(index.positions)):
        index.positions[slot] -= 7
    region = region_of(log, 0)
    got = sent(region)
    whole = tools.read(log, 0, 2 << 20)
    assert got == bytes(whole.records[: len(got)])
    offsets = tools.base_offsets(whole.records)
    for offset in offsets[:100]:
        assert tools.base_offsets(tools.read(log, offset, 1).records) == [offset]


def test_little_is_copied(log):
    assert log.read(0, REGION_BYTES_MIN - 1, may_stay_in_file=True).region is None
    assert log.read(0, 1 << 20).region is None
    assert region_of(log, 0) is not None
    assert region_of(log, log.log_end_offset - 1) is None


def test_a_region_outlives_its_log(log, logs, tools):
    expected = bytes(tools.read(log, 0).records)
    region = region_of(log, 0)
    before = len(os.listdir("/proc/self/fd"))
    logs.manager.delete(log.topic, log.partition)
    logs.clock.advance(1 << 40)
    assert logs.manager.delete_due_files()
    assert sent(region) == expected[: len(region)]
    del region
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_file_that_was_cut_off_ends_the_sending(log):
    region = region_of(log, 0)
    os.truncate(log.segments[0].file.path, 10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        region.send(ours.fileno(), 0)
        with pytest.raises(OSError, match="truncated while"):
            region.send(ours.fileno(), 10)
    with pytest.raises(OSError, match="truncated while"):
        region.read()


def test_without_descriptors_all_is_copied(log, logs):
    def refused(_):
        raise OSError(errno.EMFILE, "Too many open files")

    logs.files.before["duplicate"] = refused
    data = log.read(0, 1 << 20, may_stay_in_file=True)
    assert data.region is None
    assert len(data.records) > REGION_BYTES_MIN


def test_records_are_copied_if_the_page_cache_is_unknown(log):
    log.context.reads_cached = False
    assert region_of(log, 0) is None


def test_a_region_knows_whether_it_is_in_the_page_cache(log, logs):
    region = region_of(log, 0)
    assert region.is_cached(0)
    assert not region.counts_itself
    forgotten = len(region)  # where the next batch starts, which `send` looks at if nobody could before

    def forgetful(_descriptor, _size, position):
        if position >= forgotten:
            raise ReadWouldBlock

    logs.files.before["pread_cached"] = forgetful
    assert region.is_cached(0)
    region = region_of(log, 0)
    assert region.counts_itself
    assert not region.is_cached(0)
    assert log.sent_records == 0
    data = sent(region)
    assert len(data) == len(region)
    assert log.sent_records == sum(header.last_offset - header.base_offset + 1 for header in iter_headers(data))
    assert region.is_cached(0)
    forgotten -= 1
    assert not region.is_cached(0)
    assert not region.is_cached(len(region) - 100)


def test_a_region_is_read_without_waiting_for_the_disk(log, logs):
    data = bytes(region_of(log, 0).read())
    records = sum(header.last_offset - header.base_offset + 1 for header in iter_headers(data))
    cold = len(data)  # where the next batch starts

    def forgetful(_descriptor, _size, position):
        if position >= cold:
            raise ReadWouldBlock

    logs.files.before["pread_cached"] = forgetful
    region = region_of(log, 0)
    assert region.counts_itself
    with pytest.raises(ReadWouldBlock):
        region.read_cached(200, 101)
    cold = 300
    with pytest.raises(ReadWouldBlock):
        region.read_cached(200, 101)
    assert log.sent_records == 0
    logs.files.heal()
    for start, size in ((200, 101), (0, len(data))):
        assert bytes(region.read_cached(start, size)) == data[start : start + size]
        assert log.sent_records == records


def test_no_more_descriptors_are_lent_than_others_can_spare(log):
    regions = []
    while (region := region_of(log, 0)) is not None:
        regions.append(region)
    assert 8 <= len(regions) <= log.context.cache.limit // 12
    regions.pop()
    assert region_of(log, 0) is not None


def test_after_a_restart_the_first_read_brings_the_index(log, logs, tools):
    name = log.topic, log.partition
    logs.restart()
    again = logs.manager.get(*name)
    for segment in again.segments[:-1]:
        with pytest.raises(ColdRead) as cold:
            again.read(segment.base_offset, 1 << 20, may_stay_in_file=True)
        data = cold.value.load()
        assert tools.base_offsets(data.records)[0] == segment.base_offset
        assert region_of(again, data.next_offset) is not None
        assert region_of(again, segment.base_offset) is not None


def test_an_index_that_ends_in_the_first_batch_stops_no_reader(logs, tools):
    log = logs.log(segment_bytes=SEGMENT_BYTES)
    for _ in range(3):
        logs.append(log, bytes(900_000))
    if not log.context.reads_cached:
        pytest.skip("this file system does not tell what is in the page cache: all is copied")
    index = log.segments[0].offset_index
    index.positions[0] = 1 << 19
    data = log.read(0, 1 << 20, may_stay_in_file=True)
    assert tools.base_offsets(data.records) == [0]
