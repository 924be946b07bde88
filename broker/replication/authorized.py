"""Appends and fetches of clients whose topics are decided by an authorizer, one by one. Imported at the first such
request: without an authorizer the operations of `append_operation.py` and `fetch_operation.py` serve clients.

A topic that is refused is not looked up: the result is the same whether it exists or not.
"""

from collections.abc import Callable
from typing import Any

from barnabas.broker.replication.append_operation import AppendOperation, Batch
from barnabas.broker.replication.fetch_operation import FetchOperation
from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import Validated
from barnabas.broker.replication.replica_selector import RackAwareFetch
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.produce import TopicProduceData

May = Callable[[str], bool]
"""Whether the client may write to, or read from, the topic of a name."""


class AuthorizedAppend(AppendOperation):
    """The appends of one request to the topics that `may_write` allows; batches of other topics take no part in
    transactions."""

    def __init__(self, *arguments: Any, may_write: May, **named: Any) -> None:
        self._may_write = may_write
        super().__init__(*arguments, **named)

    def _append(self, batch: Batch, validated: Validated | None = None) -> None:
        topic_data, data, results = batch
        try:
            self._topic(topic_data)
        except ApiError as error:
            results.append(self._refuse(topic_data.name, data, error))
        else:
            super()._append(batch, validated)

    def _topic(self, topic_data: TopicProduceData) -> str:
        topic = super()._topic(topic_data)
        if not self._may_write(topic):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return topic


class _Authorized(FetchOperation):
    """Reads the topics that `may_read` allows, also those of partitions that wake in their session meanwhile."""

    def __init__(self, *arguments: Any, may_read: May, **named: Any) -> None:
        self._may_read = may_read
        super().__init__(*arguments, **named)

    def _locate(self, asked: FetchPartition) -> tuple[Partition, int]:
        if asked.topic is not None and not self._may_read(asked.topic):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return super()._locate(asked)


class AuthorizedFetch(_Authorized):
    """A consumer's fetch."""


class AuthorizedRackAwareFetch(_Authorized, RackAwareFetch):
    """The fetch of a consumer that is directed to a replica in its rack."""
