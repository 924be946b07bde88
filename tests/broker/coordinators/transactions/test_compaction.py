"""`__transaction_state` after the cleaner ran: a coordinator that loads it knows what it knew before."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from barnabas.broker.cluster.metadata import TRANSACTION_STATE_TOPIC
from barnabas.broker.coordinators.transactions.events import AddPartitions, EndTransaction, InitProducerId
from barnabas.broker.coordinators.transactions.state import NO_PRODUCER_EPOCH, Transaction, TransactionState
from barnabas.testing import Broker
from tools.waiting import PATIENCE_S

IDS = 20
ROUNDS = 6


async def work(broker: Broker) -> None:
    """Many transactions by few ids, which end in different states; the last id is never used again."""
    service = broker.server.transactions
    for round_number in range(ROUNDS):
        for number in range(IDS if round_number == 0 else IDS - 1):
            name = f"id-{number}"
            reply = await service.producer(InitProducerId(name, 0, 60_000, None))
            producer = (reply.producer_id, reply.producer_epoch)
            if number % 3:
                await service.partitions(AddPartitions(name, 0, *producer, frozenset({("t", number % 2)}), 0))
            if number % 3 == 2 or (number % 3 == 1 and round_number < ROUNDS - 1):
                await service.producer(EndTransaction(name, 0, *producer, number % 2 == 0, 0))


async def known(broker: Broker) -> Mapping[str, Transaction]:
    """By id, without what is not written to the log."""
    listed = broker.server.transactions.list_transactions([], [], -1)
    return {
        found.transactional_id: found._replace(last_producer_epoch=NO_PRODUCER_EPOCH) for found in listed.transactions
    }


async def log_bytes(broker: Broker) -> int:
    return broker.server.replicas.partition_or_error(TRANSACTION_STATE_TOPIC, 0).log.size_in_bytes


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_coordinator_loads_the_same_after_the_cleaner_ran(how: str) -> None:
    with Broker(
        transaction_state_log_num_partitions=1,
        transaction_state_log_segment_bytes=1_000,
        log_cleaner_min_cleanable_ratio=0.01,
        log_cleaner_delete_retention_ms=1_000,
        transactional_id_expiration_ms=600_000,
    ) as broker:
        broker.create_topic("t", 2)
        Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "id-0"}).init_transactions(
            PATIENCE_S
        )
        broker.call(work(broker))
        size = broker.call(log_bytes(broker))
        broker.clock.advance(60_000)
        broker.clock.advance(60_000)
        assert broker.call(log_bytes(broker)) < size / 3, "nothing was compacted"
        before = broker.call(known(broker))
        assert len(before) == IDS
        assert {transaction.state for transaction in before.values()} >= {
            TransactionState.EMPTY,
            TransactionState.COMPLETE_ABORT,
            TransactionState.COMPLETE_COMMIT,
        }
        if how == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        broker.call(broker.server.settle())  # loading is part of the work that a start begins
        assert broker.call(known(broker)) == before
