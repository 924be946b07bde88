"""A verb of the control port, and how its entry in the table is made (`verbs.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.testing.control import actions, fields
from barnabas.testing.control.actions import Asked
from barnabas.testing.control.fields import Field

TEXT: Final = "text/plain"
SVG: Final = "image/svg+xml"


@dataclass(frozen=True)
class Verb:
    """`method` and `path` are HTTP's; `answer` is a shape of `answers.SHAPES`, or a media type for text."""

    method: str
    path: str
    does: str
    answer: str
    call: Callable[[Asked], Any]
    fields: Sequence[Field] = ()
    status: int = 200

    @property
    def name(self) -> str:
        """The verb's name in errors."""
        return f"{self.method} {self.path}"

    @property
    def paths(self) -> Sequence[str]:
        """The paths of the verb: one for a broker also has a path without the broker's name, for main."""
        of_broker = self.path.removeprefix(BROKER)
        return [self.path] if of_broker in ("", self.path) else [self.path, of_broker]

    @property
    def waits(self) -> bool:
        """Whether a request may wait as long as it specifies."""
        return any(field.argument == "timeout" for field in self.fields)

    @property
    def has_deadline(self) -> bool:
        """Whether a request, though no wait, may specify a deadline."""
        return any(field.kind is fields.DEADLINE for field in self.fields)


API: Final = Field("api", fields.TEXTS, "Kafka's name of a request, such as Produce, or several. Default: all.")
SELECTION: Final = (
    Field("topic", fields.TEXTS, "Requests about one of these topics."),
    Field("partition", fields.NUMBERS, "Requests about one of these partitions."),
    Field("group", fields.TEXTS, "Requests about one of these consumer groups."),
    Field("transactional_id", fields.TEXTS, "Requests about one of these transactional ids."),
    Field("client_id", fields.TEXTS, "Requests of clients with one of these ids."),
    Field("principal", fields.TEXTS, "Requests of one of these principals, as User:ANONYMOUS."),
    Field("connection", fields.NUMBERS, "Requests on one of these connections."),
    Field("version", fields.NUMBERS, "Requests in one of these versions of the API."),
    Field("node", fields.NUMBERS, "Requests to one of these brokers, by their ids.", argument="broker"),
    Field("from_brokers", fields.TRUTH, "Also requests that brokers of a cluster send each other."),
)
LIMITS: Final = (
    Field("times", fields.POSITIVE, "The most requests that are hit."),
    Field("after", fields.COUNT, "The number of requests that pass first."),
    Field("every", fields.POSITIVE, "Which ones are hit: each N-th."),
    Field("probability", fields.CHANCE, "With which probability."),
    Field("seed", fields.NUMBER, "Seed of the random numbers for it; description of the fault has it."),
)
MATCHING: Final = (*SELECTION, *LIMITS)

# --- entries of the table --------------------------------------------------------------------------

BROKER: Final = "/brokers/{broker}"
FAULT: Final = "/brokers/{broker}/faults/{fault}"


def fault_verb(name: str, does: str, *own: Field, fields: Sequence[Field] = MATCHING) -> Verb:
    call = actions.new_fault_of(name) if API in own else actions.new_fault(name)
    return Verb("POST", f"{BROKER}/{name}", does, "Fault", call, (*own, *fields), 201)


def state_verb(name: str, does: str, *own: Field, answer: str = "Done", told: str | None = None) -> Verb:
    """`told` is the only field of the response, if it has one."""
    return Verb("POST", f"{BROKER}/{name}", does, answer, actions.to_state(name, told), own)


def get(path: str, does: str, answer: str, call: Callable[[Asked], Any], *own: Field) -> Verb:
    return Verb("GET", path, does, answer, call, own)


def post(path: str, does: str, answer: str, call: Callable[[Asked], Any], *own: Field, status: int = 200) -> Verb:
    return Verb("POST", path, does, answer, call, own, status)


def delete(path: str, does: str, answer: str, call: Callable[[Asked], Any]) -> Verb:
    return Verb("DELETE", path, does, answer, call)
