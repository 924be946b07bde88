"""Each client's errors are those of docs/security/clients.md, by each mechanism, with and without TLS: the same on
Barnabas and on Apache Kafka (`BARNABAS_COMPAT_TARGET=kafka`)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from compat_tests.conftest import KAFKA, TARGET
from compat_tests.security.clients.brokers import GOOD, NO_ACL, OVERDUE, STRANGE, WRONG, Secured, barnabas, kafka
from compat_tests.security.clients.drivers.driver import NOTHING, OK
from compat_tests.security.clients.matrix import CERTIFICATE, TOKEN, Case, cases, clients, play
from tests.support.required import tool_missing
from tools.foreign.languages import ToolchainMissing

pytestmark = pytest.mark.slow

PAGE: Final = Path(__file__).parents[3] / "docs" / "security" / "clients.md"
SOME: Final = (
    Case("SCRAM-SHA-512", True, GOOD),
    Case("SCRAM-SHA-256", True, WRONG),
    Case("PLAIN", False, STRANGE),
    Case(TOKEN, True, OVERDUE),
    Case(CERTIFICATE, True, OVERDUE),
    Case(CERTIFICATE, True, NO_ACL),
)
"""In the gate, of each client."""

Errors = Mapping[str, set[str]]
"""The errors that a client may raise, by the titles of the page's columns."""


def table() -> dict[str, dict[str, set[str]]]:
    """The page's tables as one, by client."""
    found: dict[str, dict[str, set[str]]] = {}
    columns: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[:1] == ["client"]:
            columns = cells[1:]
        elif cells and not set(cells[0]) <= {"-"}:
            for column, cell in zip(columns, cells[1:], strict=True):
                found.setdefault(cells[0], {})[column] = set(re.findall("`([^`]+)`", cell))
    return found


def expected(client: str, case: Case, errors: Errors) -> dict[str, set[str]]:
    """The outcomes that the page, or what it says of Apache Kafka, allows to a producer and to a consumer."""
    if case.situation == NO_ACL and not (TARGET == KAFKA and is_old_scram(client, case)):
        return {"produce": errors["producer"], "consume": errors["consumer"]}
    allowed = of_login(client, case, errors)
    return {"produce": allowed, "consume": allowed}


def of_login(client: str, case: Case, errors: Errors) -> set[str]:
    if case.has_expired_broker:
        return errors["the broker's"]
    if TARGET == KAFKA and is_old_scram(client, case):
        return errors["password"]
    if case.situation == GOOD:
        return {OK}
    if TARGET == KAFKA and client == "aiokafka" and case.mechanism == TOKEN:
        return {NOTHING}
    return errors[{TOKEN: "token", CERTIFICATE: "its own"}.get(case.mechanism, "password")]


def is_old_scram(client: str, case: Case) -> bool:
    """Whether the client repeats the nonce, as librdkafka before 2.6.1, which Apache Kafka 4 refuses."""
    return client == "kcat" and case.mechanism.startswith("SCRAM")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    start = kafka if TARGET == KAFKA else barnabas
    with start(tmp_path_factory.mktemp("identities")) as secured:
        yield secured


def test_the_page_has_each_client() -> None:
    assert set(table()) == set(clients())


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=pytest.mark.java) if name == "Java" else name for name in clients()]
)
@pytest.mark.parametrize("wanted", [SOME, pytest.param(cases(), marks=pytest.mark.full)], ids=["some", "all"])
def test_errors(broker: Secured, client: str, wanted: list[Case]) -> None:
    if client == "kcat" and shutil.which("kcat") is None:
        tool_missing("kcat is not installed (Debian: apt-get install kcat)")
    errors = table()[client]
    differing = []
    try:
        for case, outcomes in play(clients()[client], broker, wanted):
            allowed = expected(client, case, errors)
            if not all(outcomes[work] in allowed[work] for work in allowed):
                differing.append(f"{case.name}: {outcomes}, not {allowed}")
    except ToolchainMissing as missing:
        tool_missing(missing)
    assert not differing, "\n".join(differing)
