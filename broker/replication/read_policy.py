"""The part of a log that a fetch may return, by the kind of its reader.

Source: org.apache.kafka.server.storage.log.FetchIsolation, whose names these are.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.storage.log import PartitionLog


class ReadPolicy(NamedTuple):
    """The part of a log that a reader may see.

    `max_offset` returns the offset that the reader may not pass. With `tells_aborted` the response lists the aborted
    transactions that have records in it.
    """

    max_offset: Callable[[PartitionLog], int]
    tells_aborted: bool = False


LOG_END: Final = ReadPolicy(attrgetter("log_end_offset"))
"""Of followers."""

HIGH_WATERMARK: Final = ReadPolicy(attrgetter("high_watermark"))
"""Of consumers with `isolation.level=read_uncommitted`."""

TXN_COMMITTED: Final = ReadPolicy(attrgetter("last_stable_offset"), tells_aborted=True)
"""Of consumers with `isolation.level=read_committed`."""
