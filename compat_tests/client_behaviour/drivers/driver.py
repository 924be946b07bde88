"""Drives a client: a process that gets one order after the other, a line of JSON each, and responds with the outcome.

    {"workload": "produce", "servers": "127.0.0.1:9092", "deadline_s": 8}
    {"errors": ["MSG_SIZE_TOO_LARGE"], "values": [], "is_done": false}

Each workload has a client of its own, with that client's default settings but for what it is about. `errors` are those
that the program hears of, `values` are records that it has read; `is_done` when all came to its end: a record is
acknowledged, a commit is, or the record that is to be the last one was read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

TOPIC = "probe"
GROUP = "probe"
CLIENT_ID = "probe"
TRANSACTIONAL_ID = "probe"
INSTANCE_ID = "probe"
"""Of a static member."""
LAST = "2"
"""The value after which `stay` is done."""

Workload = Callable[[str, float], "Outcome"]


class Outcome:
    """The outcome of a workload."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.values: list[str] = []
        self.is_done = False

    def failed(self, error: object) -> None:
        """The program hears of an error, by its name."""
        name = error if isinstance(error, str) else type(error).__name__
        if name not in self.errors:
            self.errors.append(name)


def serve(workloads: Mapping[str, Workload]) -> None:
    """Do what is asked until the input ends."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        outcome = workloads[asked["workload"]](asked["servers"], asked["deadline_s"])
        print(json.dumps(vars(outcome)), flush=True)
