"""An internal topic in memory, as its coordinator sees it."""

import asyncio

from barnabas.wire.record_batch import iter_headers, parse_header, patch
from barnabas.wire.records import iter_records


class Crash(BaseException):
    """The broker dies here."""


class MemoryLog:
    """A `CoordinatorLog` that starts with `batches`, by partition.

    `replicated` False holds commits back until `replicate`. `refusal` is raised by appends, `refusals` one by one by
    the next ones, and after `appends_left` comes a Crash. `gate` stops reads, which raise `read_error`.
    """

    def __init__(self, batches=None):
        self.batches = {} if batches is None else batches
        self.replicated = True
        self.waiting = []
        self.refusal = None
        self.refusals = []
        self.appends_left = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.read_error = None

    def append(self, partition, batch, transaction_version=0):
        if self.appends_left == 0:
            raise Crash
        if self.appends_left is not None:
            self.appends_left -= 1
        if self.refusals:
            raise self.refusals.pop(0)
        if self.refusal is not None:
            raise self.refusal
        batches = self.batches.setdefault(partition, [])
        patch(batch, 0, parse_header(batches[-1]).next_offset if batches else 0, 0)
        batches.append(bytes(batch))
        return parse_header(batch).next_offset

    def committed(self, partition, end_offset):
        if self.replicated:
            return None
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def replicate(self, error=None):
        """Let everybody who waits go on, or have them told of an error."""
        waiting, self.waiting = self.waiting, []
        self.replicated = True
        for future in waiting:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    async def read_all(self, partition, take):
        await self.gate.wait()
        if self.read_error is not None:
            raise self.read_error
        for chunk in self.batches.get(partition, []):
            take(chunk)

    def record_counts(self, partition):
        return [header.record_count for batch in self.batches.get(partition, []) for header in iter_headers(batch)]

    def values(self):
        for batches in self.batches.values():
            for batch in batches:
                yield from (record.value for record in iter_records(batch, parse_header(batch)))
