"""Writes docs/authorization.md from the headers of the handlers: `python -m tools.references.authorization`.

The header of a handler says what it asks the authorizer in a paragraph "Authorization: ": checks, separated by
semicolons. A check is "OPERATION on RESOURCE (CONDITION): WHAT HAPPENS", with several operations "or" between them if
each of them suffices; or the paragraph says "none, as in Kafka: REASON".
"""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

from barnabas.broker.handlers import apis_between_brokers, served_apis
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.messages import API_NAMES
from tools.markdown import wrapped

TARGET = Path(__file__).resolve().parents[2] / "docs" / "authorization.md"

INTRODUCTION = """# Authorization

With `authorizer.class.name` the broker asks an authorizer (ACLs) before it does what a client requests. It asks for
the operations that Apache Kafka's brokers ask for, in the same order, and before it looks whether something exists: a
client that may not describe a topic gets the same response whether there is such a topic or not. Names of topics that
a client may not describe are in no list.

Requests of other brokers of the cluster are allowed, once they have shown the secret of their broker. A broker of
Apache Kafka, which has none, needs ClusterAction on the cluster, as in Kafka: list its principal in `super.users`.

*This page is written by `make docs`.*

## The checks

In brackets: the key of the API. The operations come first, then what happens without them; of several operations with
"or" between them one suffices. Errors "per partition" are those of the partitions of one topic: other topics of the
request are served.

"""

_PARAGRAPH = re.compile(r"^Authorization: (.*?)\.(?=\n[A-Z][\w ]*: |\Z)", re.MULTILINE | re.DOTALL)
_CHECK = re.compile(
    r"(?P<needs>[A-Za-z]+ on [A-Za-z]+(?: or [A-Za-z]+ on [A-Za-z]+)*)(?: \((?P<condition>.*?)\))?: (?P<refusal>.*)"
)
_BETWEEN_CHECKS = re.compile(r"; (?![^(]*\))")
"""Semicolons outside of parentheses."""
_NONE = "none, as in Kafka: "

Needs: TypeAlias = tuple[tuple[Operation, ResourceType], ...]


class Check(NamedTuple):
    """A check of a handler: one of `needs` suffices. `condition` says when it applies, if not always."""

    needs: Needs
    condition: str
    refusal: str

    @property
    def text(self) -> str:
        """The operations as the page shows them."""
        needs = " or ".join(f"{_words(operation)} on {_words(resource)}" for operation, resource in self.needs)
        return f"{needs} ({self.condition})" if self.condition else needs


class Api(NamedTuple):
    """What the header of one API's handler says; `reason` is set if there are no checks."""

    key: int
    checks: tuple[Check, ...]
    reason: str


def apis() -> Iterator[Api]:
    """All served APIs, by key. Raises: ValueError for a header that says nothing, or not in the form above."""
    modules = {**served_apis(), **apis_between_brokers()}
    for key in sorted(modules):
        spec = find_spec(f"barnabas.broker.handlers.{modules[key]}")
        assert spec is not None
        assert spec.origin is not None
        header = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
        yield _api(key, header)


def _api(key: int, header: str) -> Api:
    found = _PARAGRAPH.search(header)
    if found is None:
        raise ValueError(f"the header of {API_NAMES[key]} says nothing about authorization")
    text = " ".join(found[1].split())
    if text.startswith(_NONE):
        return Api(key, (), text.removeprefix(_NONE))
    return Api(key, tuple(map(_check, _BETWEEN_CHECKS.split(text))), "")


def _check(text: str) -> Check:
    found = _CHECK.fullmatch(text)
    if found is None:
        raise ValueError(f"a check is OPERATION on RESOURCE (CONDITION): WHAT HAPPENS, not {text!r}")
    return Check(needs_of(found["needs"]), found["condition"] or "", found["refusal"])


def needs_of(text: str) -> Needs:
    """The operations of a check, of which one suffices: "Create on Cluster or Create on Topic"."""
    return tuple(
        (Operation[_constant(operation)], ResourceType[_constant(resource)])
        for operation, _, resource in (need.split() for need in text.split(" or "))
    )


def _constant(word: str) -> str:
    """The name of a constant: "DescribeConfigs" is DESCRIBE_CONFIGS."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", word).upper()


def _words(constant: Operation | ResourceType) -> str:
    """The name of a constant as Kafka's tools show it."""
    return "".join(part.capitalize() for part in constant.name.split("_"))


def reference() -> str:
    """The page."""
    return INTRODUCTION + "\n".join(map(_item, apis())) + "\n"


def _item(api: Api) -> str:
    checks = "; ".join(f"{check.text}: {check.refusal}" for check in api.checks)
    return wrapped(f"- **{API_NAMES[api.key]}** ({api.key}): {checks or f'nothing; {api.reason}'}.")


if __name__ == "__main__":
    TARGET.write_text(reference())
