"""A fault that comes once while a client does one thing, and the kinds of which there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 8.0

Inject = Callable[[Any], Any]
"""A fault, of a broker."""

SINCE = {
    ("Produce", "UNKNOWN_TOPIC_ID"): 13,
    ("Produce", "TRANSACTION_ABORTABLE"): 11,
    ("Produce", "CONCURRENT_TRANSACTIONS"): 12,
    ("Fetch", "UNKNOWN_TOPIC_ID"): 13,
    ("Fetch", "INCONSISTENT_TOPIC_ID"): 13,
    ("Fetch", "FETCH_SESSION_TOPIC_ID_ERROR"): 13,
    ("ListOffsets", "FENCED_LEADER_EPOCH"): 4,
    ("ListOffsets", "UNKNOWN_LEADER_EPOCH"): 4,
    ("ListOffsets", "OFFSET_NOT_AVAILABLE"): 5,
    ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT"): 7,
    ("OffsetFetch", "UNKNOWN_TOPIC_ID"): 10,
    ("OffsetCommit", "GROUP_ID_NOT_FOUND"): 9,
    ("OffsetCommit", "UNKNOWN_TOPIC_ID"): 10,
    ("FindCoordinator", "TRANSACTION_ABORTABLE"): 5,
    ("InitProducerId", "PRODUCER_FENCED"): 4,
    ("InitProducerId", "TRANSACTION_ABORTABLE"): 5,
    ("AddPartitionsToTxn", "PRODUCER_FENCED"): 2,
    ("AddOffsetsToTxn", "PRODUCER_FENCED"): 2,
    ("TxnOffsetCommit", "UNKNOWN_MEMBER_ID"): 3,
    ("TxnOffsetCommit", "ILLEGAL_GENERATION"): 3,
    ("TxnOffsetCommit", "FENCED_INSTANCE_ID"): 3,
    ("TxnOffsetCommit", "TRANSACTION_ABORTABLE"): 4,
    ("TxnOffsetCommit", "CONCURRENT_TRANSACTIONS"): 5,
    ("EndTxn", "PRODUCER_FENCED"): 2,
    ("EndTxn", "TRANSACTION_ABORTABLE"): 4,
}
"""The version of an API from which on Kafka answers with an error: a client that asks in an older one never meets
it."""
VERSION_MAX = 99


@dataclass(frozen=True)
class Case:
    """A fault: `inject` puts it in place before the client starts, `meanwhile` goes on beside the client."""

    area: str
    title: str
    workload: str
    api: str
    inject: Inject
    meanwhile: Callable[[Any, Any], None] = field(default=lambda broker, fault: None)
    fails: bool = True
    """Whether a request fails, so that it is asked again."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Of the topic."""
    wait_s: float = WAIT_S
    """How long the client is watched."""
    is_real: bool = False
    """Whether Apache Kafka can be brought to it: by what is done to it, or to its clients' connections."""
    brokers: int = 1
    """How many there are."""

    @property
    def name(self) -> str:
        """How it is named on the page, and by `-k`."""
        return f"{self.area}: {self.title}"


def errors(area: str, workload: str, api: str, names: str, **where: Any) -> Iterator[Case]:
    """An answer with each of these errors."""
    for error in names.split():
        yield Case(area, f"{api}: `{error}`", workload, api, fail(api, error, **where))


def fail(api: str, error: str, **where: Any) -> Inject:
    """One answer with an error, to a client that can hear of it."""
    if (api, error) in SINCE:
        where["version"] = range(SINCE[api, error], VERSION_MAX)
    return lambda broker: broker.faults.fail(api, error, times=1, **where)


def lost(area: str, workload: str, api: str) -> Iterator[Case]:
    """The connection breaks before the work, and after it."""
    yield Case(
        area, f"{api}: the request is lost", workload, api, lambda broker: broker.faults.disconnect(api, times=1),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, f"{api}: the answer is lost", workload, api,
        lambda broker: broker.faults.disconnect(api, times=1, after_work=True), is_real=True,
    )  # fmt: skip


def slow(area: str, workload: str, api: str) -> Case:
    """One answer that takes its time."""
    return Case(
        area,
        f"{api}: the answer takes 1 s",
        workload,
        api,
        lambda broker: broker.faults.delay(api, 1000, times=1),
        fails=False,
        is_real=True,
    )
