"""docs/client-behaviour.md: what each client did in each case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.client_behaviour.case import WAIT_S, Case
from compat_tests.client_behaviour.kafka_errors import ANSWERED, LEFT_OUT
from tools.foreign.kafka import ORACLE_VERSION
from tools.markdown import wrapped

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-behaviour.md"

HEAD = """# What clients do when something goes wrong

<!-- Written by `make client-behaviour`: do not edit. -->

{count} faults, each of which comes once, and what each client does. `make client-behaviour` runs each client, with its
default settings, against a broker of [`barnabas.testing`](testing/faults.md), and writes this page.

- "again in 100 ms": the client sends the same request again, so long after the failure (to one digit), and after the
  requests that are named. The program that uses the client notices nothing.
- "goes on": the client does not repeat the request, and the program notices nothing.
- "raises": the program gets this error instead of the result. "tells": the program gets this error, and the client
  recovers when the program asks again.
- **doubled**: the produced record is there twice. **lost**: it is not there, though it was acknowledged or its
  transaction was committed (a program that looks at the record's own future gets an error). "it is written": it is
  there, though the program gets an error. "read twice": the consumed record, of which nothing was committed.
  **not committed** and "it is committed": the same of the offsets that a transaction commits.
- "still waits": after so many seconds, which are less than most timeouts of clients. **hangs**: the client cannot even
  be closed then. It has {wait_s:.0f} seconds where no other number is named, and 20 with three brokers.
- "not measured": `make client-behaviour` was not run with the client since the fault, or the client, was added.
- "does not ask that": the client does not send this request, or in a version to which Kafka does not answer so. Spark
  has no groups, commits and transactions of Kafka's, kafkajs no static members; a transaction's `AddPartitionsToTxn`
  and `AddOffsetsToTxn` are not needed from transaction version 2 on (Java, franz-go).
- franz-go reports **not committed** itself: it has aborted the transaction, and returns the records again.
- "Three brokers" needs no simulated fault: brokers of a cluster are killed and stopped, and their partitions get other
  leaders. The cluster notices a death at once.
- Spark tries its tasks up to four times in all, as on a cluster: "again" may be the next attempt of its task.
"""


LEFT_OUT_TITLE = "Errors that are left out"
LEFT_OUT_HEAD = """Clients write, read, commit and join groups with {apis}.
Every error that Apache Kafka returns for these APIs has a fault above, but for these:"""
UNKNOWN = "not measured"
ON_KAFKA = f"The same on Apache Kafka {ORACLE_VERSION}"
KAFKA_HEAD = """
The faults that need no broker that fails on demand. A proxy in front of each broker holds, delays and cuts requests;
brokers of Apache Kafka are restarted, stopped and killed, and fence, delete, elect and refuse by themselves. A restart
takes longer than that of Barnabas. The cluster notices a death when the broker's session ends, after a second
(`broker.session.timeout.ms`), so clients wait longer, too.
"""


def page(cases: Sequence[Case], behaviours: Mapping[tuple[str, str], str], versions: Mapping[str, str]) -> str:
    """The page. `behaviours` are by the client's title and the case's name, `versions` by the title."""
    titles = list(versions)
    told = ", ".join(f"{title} {version}" for title, version in versions.items())
    text = HEAD.format(count=len(cases), wait_s=WAIT_S) + f"\n{wrapped(f'Measured with {told}.')}\n"
    for area in dict.fromkeys(case.area for case in cases):
        text += f"\n## {area}\n"
        for case in cases:
            if case.area == area:
                text += _entry(case.title, {title: behaviours.get((title, case.name), UNKNOWN) for title in titles})
    text += _left_out()
    text += f"\n## {ON_KAFKA}\n{KAFKA_HEAD}"
    for case in cases:
        if case.is_real:
            text += _entry(case.name, {title: behaviours.get((title, on_kafka(case)), UNKNOWN) for title in titles})
    return text


def _entry(name: str, behaviours: Mapping[str, str]) -> str:
    """A fault, and a line for the clients that behave alike."""
    alike: dict[str, list[str]] = {}
    for client, behaviour in behaviours.items():
        alike.setdefault(behaviour, []).append(client)
    items = (wrapped(f"- {', '.join(clients)}: {behaviour}") for behaviour, clients in alike.items())
    return "\n".join(["", f"**{name}**", "", *items, ""])


def _left_out() -> str:
    """The errors of Apache Kafka that no client met here, with the reasons: a paragraph for each reason."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for (api, error), reason in LEFT_OUT.items():
        reasons.setdefault(reason, {}).setdefault(api, []).append(f"`{error}`")
    text = f"\n## {LEFT_OUT_TITLE}\n\n{wrapped(LEFT_OUT_HEAD.format(apis=', '.join(ANSWERED)))}\n\n"
    for reason, apis in reasons.items():
        told = "; ".join(f"{api} {', '.join(errors)}" for api, errors in apis.items())
        text += wrapped(f"- {told}: {reason}.") + "\n"
    return text


def on_kafka(case: Case) -> str:
    """How a case is named where it is Apache Kafka that was asked."""
    return f"{ON_KAFKA}: {case.name}"


def cells(text: str) -> dict[tuple[str, str], str]:
    """The cells of a page, by the client's title and the case's name."""
    found: dict[tuple[str, str], str] = {}
    area = title = ""
    for line in text.replace("\n  ", " ").splitlines():
        if heading := re.fullmatch(r"## (.*)", line):
            area, title = heading[1], ""
        elif fault := re.fullmatch(r"\*\*(.*)\*\*", line):
            title = fault[1]
        elif title and line.startswith("- "):
            clients, _, behaviour = line[2:].partition(": ")
            found |= {(client, f"{area}: {title}"): behaviour for client in clients.split(", ")}
    return found


def kind(cell: str) -> str:
    """The part of a cell that is the same in each run: without times, and without the requests in between."""
    first, _, of_records = cell.partition("; ")
    return re.sub(r",? ?(then |having tried )?again.*", " again", first).strip() + f"; {of_records}"
