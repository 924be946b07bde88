"""Translation of the texts of `barnabas.testing` from Python's terms to HTTP's."""

from __future__ import annotations

from typing import Final

_START: Final = "POST start starts it"

_IN_HTTP: Final = (
    ("start() it, or use it in a `with` block", _START),
    ("start() one of its brokers", "POST start with a node starts one of them"),
    ("start() one of them", "POST start with a node starts one of them"),
    ("start() them", "POST start with a node starts one of them"),
    ("start() it", _START),
    ("use another Broker()", "POST /brokers starts another one"),
    ("add from_brokers=True", 'add "from_brokers": true'),
    ("remove() it first", "DELETE it first, by its number of GET faults"),
    ("use Cluster(), or Cluster(1)", 'POST /brokers {"brokers": 3} starts a cluster'),
    ("group=... or transactional_id=...", "group or transactional_id"),
    ("`with broker.recorded():`, pytest's --kafka-record or POST .../recorded does", "POST recorded begins"),
)


def in_http(text: str) -> str:
    """A text for an HTTP client."""
    for python, http in _IN_HTTP:
        text = text.replace(python, http)
    return text
