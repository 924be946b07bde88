"""Several transactions in one request, as brokers send them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from barnabas.broker.coordinators.transactions.events import PartitionsReply
from barnabas.broker.handlers.add_partitions_to_txn import handle
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)


class Transactions:
    """The coordinator, whose log stands still for the transactions in `held`."""

    def __init__(self) -> None:
        self.held = {"a": asyncio.Event(), "b": asyncio.Event()}
        self.asked: list[str] = []

    async def partitions(self, event: Any) -> PartitionsReply:
        self.asked.append(event.transactional_id)
        if event.transactional_id in self.held:
            await self.held[event.transactional_id].wait()
        return PartitionsReply(ErrorCode.NONE)


async def ask_for_three() -> None:
    transactions = Transactions()
    metadata = SimpleNamespace(has_partition=lambda topic, index: True)
    context: Any = SimpleNamespace(
        api_version=5,
        authorizer=None,
        comes_from_some_broker=lambda: True,
        services=SimpleNamespace(metadata=metadata, transactions=transactions),
    )
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(transactional_id=name, topics=topics, verify_only=True) for name in "abc"
        ]
    )
    answering = asyncio.create_task(handle(request, context))
    for _ in range(3):
        await asyncio.sleep(0)
    assert transactions.asked == ["a", "b", "c"]
    for event in reversed(transactions.held.values()):
        event.set()
    response = await answering
    assert [result.transactional_id for result in response.results_by_transaction] == ["a", "b", "c"]


def test_transactions_of_a_request_do_not_wait_for_each_other() -> None:
    asyncio.run(ask_for_three())
