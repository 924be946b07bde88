"""docs/client-behaviour.md: what each client did in each case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.client_behaviour.case import WAIT_S, Case
from compat_tests.client_behaviour.kafka_errors import ANSWERED, LEFT_OUT
from tools.foreign.kafka import ORACLE_VERSION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-behaviour.md"

HEAD = """# What clients do when something goes wrong

<!-- Written by `make client-behaviour`: do not edit. -->

{count} faults, each of which comes once, and what became of it with {clients}.
`make client-behaviour` found it out: it runs each client, with its default settings, against a broker of
[`barnabas.testing`](testing/faults.md), and writes this page.

- "again in 100 ms" is how long after the failure the client asked the same again, to one digit, and what it asked for
  before. Nothing reaches the program that uses it.
- "goes on": what was answered is not asked again, and the program hears of nothing.
- "raises" is the error that the program gets instead of what it asked for; "tells" one that it hears of, and that the
  client gets over when it is asked again.
- **doubled**, **lost** and "it is written" are about the record that is produced: it is there twice; it is not there
  though it was acknowledged, or its transaction was committed (whoever looks at the record's own future hears of it);
  it is there though the program hears of an error. "read twice" is about the one that is consumed, of which nothing was
  committed. **not committed** and "it is committed" are the same of what a transaction commits that it has read.
- "still waits": after so many seconds, which are less than most timeouts of clients. **hangs**: it cannot even be
  closed then; {wait_s:.0f} seconds were given to it, where no other number is named, and 20 with three brokers.
- "not measured": `make client-behaviour` was not run with it since the fault, or the client, was added.
- "does not ask that": it gets along without this request, or asks in a version that Kafka does not answer so. Spark has
  no groups, commits and transactions of Kafka's, kafkajs no static members; a transaction's `AddPartitionsToTxn` and
  `AddOffsetsToTxn` are not needed from transaction version 2 on (Java, franz-go).
- `not committed` is told by franz-go, too: it has ended the transaction by an abort, and hands out the records again.
- "Three brokers" has nothing that is pretended: brokers of a cluster are killed and stopped, and what they led moves to
  others. A death is noticed at once.
- Spark's tasks are tried up to four times in all, as on a cluster: "again" may be the next attempt of its task.

Measured with {versions}.
"""


LEFT_OUT_TITLE = "Errors that are left out"
LEFT_OUT_HEAD = """
Of each API that clients write, read, commit and join groups with ({apis}), all other errors with which
Apache Kafka answers have a fault above.
"""
UNKNOWN = "not measured"
ON_KAFKA = f"The same on Apache Kafka {ORACLE_VERSION}"
KAFKA_HEAD = """
Those of the faults that need no broker that fails on demand: a proxy in front of each broker holds, delays and cuts
what clients ask, and Apache Kafka's brokers are restarted, stopped and killed, fence, delete, elect and refuse by
themselves. A restart takes longer than that of Barnabas, and a death is noticed when the session of the broker has
ended, after a second (`broker.session.timeout.ms`); what waits for them takes longer, too.
"""


def page(cases: Sequence[Case], behaviours: Mapping[tuple[str, str], str], versions: Mapping[str, str]) -> str:
    """The page. `behaviours` are by the client's title and the case's name, `versions` by the title."""
    titles = list(versions)
    told = ", ".join(f"{title} {version}" for title, version in versions.items())
    text = HEAD.format(count=len(cases), clients=", ".join(titles), wait_s=WAIT_S, versions=told)
    for area in dict.fromkeys(case.area for case in cases):
        text += f"\n## {area}\n\n| fault | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}\n"
        for case in cases:
            if case.area == area:
                row = [behaviours.get((title, case.name), UNKNOWN) for title in titles]
                text += f"| {case.title} | {' | '.join(row)} |\n"
    text += _left_out()
    text += f"\n## {ON_KAFKA}\n{KAFKA_HEAD}\n| fault | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}\n"
    for case in cases:
        if case.is_real:
            row = [behaviours.get((title, on_kafka(case)), UNKNOWN) for title in titles]
            text += f"| {case.name} | {' | '.join(row)} |\n"
    return text


def _left_out() -> str:
    """Which errors of Apache Kafka no client met here, and why: a paragraph for each reason."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for (api, error), reason in LEFT_OUT.items():
        reasons.setdefault(reason, {}).setdefault(api, []).append(f"`{error}`")
    text = f"\n## {LEFT_OUT_TITLE}\n{LEFT_OUT_HEAD.format(apis=', '.join(ANSWERED))}\n"
    for reason, apis in reasons.items():
        told = "; ".join(f"{api} {', '.join(errors)}" for api, errors in apis.items())
        text += f"- {told}: {reason}.\n"
    return text


def on_kafka(case: Case) -> str:
    """How a case is named where it is Apache Kafka that was asked."""
    return f"{ON_KAFKA}: {case.name}"


def cells(text: str) -> dict[tuple[str, str], str]:
    """What a page says, by the client's title and the case's name."""
    found: dict[tuple[str, str], str] = {}
    area, titles = "", [""]
    for line in text.splitlines():
        if heading := re.fullmatch(r"## (.*)", line):
            area = heading[1]
        elif line.startswith("| fault |"):
            titles = line.strip("| ").split(" | ")[1:]
        elif line.startswith("| "):
            title, *row = line.strip("| ").split(" | ")
            found |= {(client, f"{area}: {title}"): cell for client, cell in zip(titles, row, strict=True)}
    return found


def kind(cell: str) -> str:
    """What a cell says that is the same in each run: without times, and what was asked in between."""
    first, _, of_records = cell.partition("; ")
    return re.sub(r",? ?(then |having tried )?again.*", " again", first).strip() + f"; {of_records}"
