"""Transactions whose markers find no room: they are tried again, a few at a time, and the broker goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from tools.attack.hostile import MIB, HealthyClient, Memory, eventually, processor_share
from tools.attack.stage import Stage, errors
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live]
Figure = Callable[..., None]
FULL = [pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.fixture
def full_disk(tmp_path: Path) -> Path:
    """While it exists, there is no room for the records of topic `many`."""
    return tmp_path / "many"


@pytest.fixture
def module(full_disk: Path) -> str:
    return f"tests.support.failing_disk:no room:{full_disk}"


@pytest.mark.parametrize(("count", "partitions"), [(5, 200), pytest.param(100, 1_000, marks=FULL)])
def test_a31_markers_that_are_refused(
    full_disk: Path,
    broker: BarnabasProcess,
    memory: Memory,
    healthy: HealthyClient,
    figure: Figure,
    count: int,
    partitions: int,
    is_timed: bool,
) -> None:
    """All at once; when there is room again, all transactions end."""
    healthy.rate_min = 20
    stage = Stage(broker.bootstrap_servers)
    stage.make_topic("many", partitions)
    memory.mark()
    healthy.mark()
    full_disk.touch()
    for number in range(count):
        transactional_id = f"id-{number}"
        made = stage.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000), 3)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="many", partitions=list(range(partitions)))],
        )
        assert errors(stage.ask(request, 3)) == []
        end = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            committed=True,
        )
        assert errors(stage.ask(end, 3)) == []

    def states() -> set[str]:
        listed = stage.ask(ListTransactionsRequest(), 0)
        assert listed.error_code == ErrorCode.NONE
        return {each.transaction_state for each in listed.transaction_states}

    share = processor_share(broker.pid, span_s=1) if is_timed else 0.0
    assert states() == {"PrepareCommit"}
    figure(markers=count * partitions, processor_share=round(share, 2), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert share < 0.5  # 640 tries a second, and the healthy client
    full_disk.unlink()
    assert eventually(lambda: states() == {"CompleteCommit"})
    stage.close()
    assert memory.growth <= 64 * MIB
