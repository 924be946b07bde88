"""The statements of docs/client-behaviour.md about the Python clients hold, for a few faults of each kind."""

import re

import pytest

from compat_tests.client_behaviour.cases import cases
from compat_tests.client_behaviour.kafka_errors import ANSWERED, LEFT_OUT
from compat_tests.client_behaviour.play import clients, play
from compat_tests.client_behaviour.report import LEFT_OUT_TITLE, ON_KAFKA, PAGE, UNKNOWN, cells, kind, on_kafka, page

TRIED = (
    "Produce without idempotence: Produce: `MESSAGE_TOO_LARGE`",
    "Produce with idempotence: Produce: the answer is lost",
    "Fetch: Fetch: `NOT_LEADER_OR_FOLLOWER`",
    "Commits: OffsetCommit: `COORDINATOR_NOT_AVAILABLE`",
    "Three brokers: the leader is killed before it answers, with idempotence",
)
"""An error that is told, a request that is repeated, a leader and a coordinator that move, and a broker that dies."""
TRIED_TOO = (
    "Produce without idempotence: Produce: `NOT_ENOUGH_REPLICAS`",
    "Produce without idempotence: Produce: the answer is lost",
    "Groups: JoinGroup: `GROUP_AUTHORIZATION_FAILED`",
    "Static members: OffsetCommit: `FENCED_INSTANCE_ID`",
    "Transactions: EndTxn: `INVALID_TXN_STATE`",
    "Offsets in transactions: TxnOffsetCommit: `COORDINATOR_NOT_AVAILABLE`",
    "Offsets in transactions: the member's session ends before the transaction does",
    "Three brokers: the group's coordinator is killed with a commit on its way",
)
RESTART = "Brokers that move: a restart with a commit on its way"
DIFFERENT = {
    # Apache Kafka's restart takes longer than these try.
    ("kafka-python", RESTART),
    ("franz-go", RESTART),
    # It has told the program already: whether it asks once more before it is closed is chance.
    ("franz-go", "Produce with idempotence: InitProducerId: the request is lost"),
    ("franz-go", "Produce with idempotence: InitProducerId: the answer is lost"),
}
PYTHON_CLIENTS = ("confluent_kafka", "aiokafka", "kafka_python")


def test_the_page_has_each_fault_of_each_client() -> None:
    found = cells(PAGE.read_text())
    wanted = [name for case in cases() for name in [case.name, *([on_kafka(case)] if case.is_real else [])]]
    assert set(found) == {(client.title, name) for client in clients().values() for name in wanted}
    assert len(cases()) >= 200


def test_the_page_is_as_it_is_written() -> None:
    """A change of the page or of its generator requires a change of the other."""
    text = PAGE.read_text()
    told = re.search(r"^Measured with (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert told is not None
    versions = dict(each.rsplit(" ", 1) for each in " ".join(told[1].split()).split(", "))
    assert page(cases(), cells(text), versions) == text


def test_the_page_tells_of_each_error_that_is_left_out() -> None:
    text = PAGE.read_text().partition(f"## {LEFT_OUT_TITLE}")[2].partition("\n## ")[0]
    lines = [line for line in text.replace("\n  ", " ").splitlines() if line.startswith("- ")]
    for (api, error), reason in LEFT_OUT.items():
        assert any(api in line and f"`{error}`" in line and line.endswith(f": {reason}.") for line in lines)


def test_each_error_of_kafka_has_a_case() -> None:
    told = {case.title for case in cases()}
    answered = {(api, error) for api, errors in ANSWERED.items() for error in errors.split()}
    without = {(api, error) for api, error in answered if f"{api}: `{error}`" not in told}
    assert without == set(LEFT_OUT)


def test_clients_do_the_same_with_apache_kafka() -> None:
    found = cells(PAGE.read_text())
    assert UNKNOWN not in found.values()
    compared = [
        (title, name.removeprefix(f"{ON_KAFKA}: "), cell)
        for (title, name), cell in found.items()
        if name.startswith(ON_KAFKA)
    ]
    differing = {(title, name) for title, name, cell in compared if kind(cell) != kind(found[title, name])}
    assert differing == set(DIFFERENT)
    assert len(compared) >= 450


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
@pytest.mark.parametrize("tried", [TRIED, pytest.param(TRIED_TOO, marks=pytest.mark.full)], ids=["some", "more"])
def test_the_page_is_right(name: str, tried: tuple[str, ...]) -> None:
    client = clients()[name]
    chosen = [case for case in cases() if case.name in tried]
    assert len(chosen) == len(tried)
    said = cells(PAGE.read_text())
    for case, did in play(client, chosen):
        assert kind(did) == kind(said[client.title, case.name]), f"{case.name}: {did}"


def test_an_outcomes_kind_ignores_pauses() -> None:
    assert kind("again in 100 ms, after metadata; **doubled**") == kind("again at once; **doubled**")
    assert kind("again in 100 ms; **doubled**") != kind("again in 100 ms")
    assert kind("raises `A`, having tried again in 1 s") != kind("raises `A`")
