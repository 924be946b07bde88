"""The broker that dies at one append: `python -m tools.soak.fatal_append NUMBER serve ...`.

The records of coordinators (`__transaction_state`, `__consumer_offsets`) and transaction markers are counted from 1.
When the one with this number is in its log, before any response, the process ends as with `kill -9`.
"""

import os
import signal
import sys
from itertools import count
from typing import Any

from barnabas.__main__ import main as barnabas


def die_at(number: int) -> None:
    """Make the process end at this append."""
    from barnabas.storage.log import LogAppendInfo, PartitionLog
    from barnabas.storage.validation import AppendOrigin

    append, numbers = PartitionLog.append_as_leader, count(1)

    def append_and_die(log: PartitionLog, *arguments: Any, **settings: Any) -> LogAppendInfo:
        info = append(log, *arguments, **settings)
        is_coordinators = AppendOrigin.COORDINATOR in (*arguments, settings.get("origin"))
        if is_coordinators and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return info

    PartitionLog.append_as_leader = append_and_die  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    die_at(int(sys.argv[1]))
    barnabas(sys.argv[2:])
