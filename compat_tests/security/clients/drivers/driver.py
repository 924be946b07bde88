"""Drives a client: a process that gets one login after the other, a line of JSON each, and responds with the outcome.

    {"servers": "127.0.0.1:9092", "protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "alice", ...}
    {"produce": "ok", "consume": "GROUP_AUTHORIZATION_FAILED"}

With each login, a producer of the client's own sends a record to `topic`, and a consumer in `group` reads one, with the
client's default settings. The response has the first error that each of them hears of, by the name that the client
gives it, or `ok`. `mechanism` is empty with the protocol SSL. `certificate` is the path of a file in PEM that has a
certificate and its key, empty where the client shows none; `ca` is that of the trusted authority.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

OK = "ok"
NOTHING = "nothing"
"""The outcome of a client that raises no error within the deadline, and does not come to its end."""


@dataclass(frozen=True)
class Login:
    """A login: where, by which mechanism, and as whom."""

    servers: str
    protocol: str
    mechanism: str
    username: str
    password: str
    token: str
    ca: str
    certificate: str
    topic: str
    group: str
    deadline_s: float

    @property
    def has_tls(self) -> bool:
        return self.protocol != "SASL_PLAINTEXT"


Work = Callable[[Login], str]


def serve(produce: Work, consume: Work) -> None:
    """Do what is asked until the input ends."""
    for line in sys.stdin:
        login = Login(**json.loads(line))
        print(json.dumps({"produce": produce(login), "consume": consume(login)}), flush=True)
