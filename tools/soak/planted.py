"""The broker with a bug planted on purpose: `python -m tools.soak.planted BUG serve ...`.

A harness that does not find it is worth nothing.
"""

import sys
from collections.abc import Callable

from barnabas.__main__ import main as barnabas


def dedupe_off() -> None:
    """Retries of a batch are appended again."""
    from barnabas.storage.producer_state import ProducerState

    ProducerState.check = lambda self, header, origin: None  # type: ignore[method-assign]


def lso_is_high_watermark() -> None:
    """read_committed shows what is not decided yet."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.last_stable_offset = property(lambda log: log.high_watermark)  # type: ignore[method-assign,assignment]


def aborted_index_empty() -> None:
    """Fetches do not name aborted transactions, so consumers take their records for good."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.aborted_transactions = lambda log, start, upper: []  # type: ignore[method-assign,assignment]


BUGS: dict[str, Callable[[], None]] = {
    "dedupe-off": dedupe_off,
    "lso-is-high-watermark": lso_is_high_watermark,
    "aborted-index-empty": aborted_index_empty,
}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    barnabas(sys.argv[2:])
