"""The limits on the broker's memory for transactional ids and the partitions of their transactions."""

import asyncio

import pytest

from barnabas.broker.coordinators.transactions.events import InitProducerId
from barnabas.broker.coordinators.transactions.state import held_bytes
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.coordinators.transactions.test_service import Bench

MANY = frozenset(("t", partition) for partition in range(400))


def check(bench: Bench) -> int:
    """That the running sums are what is there; all of it, in bytes."""
    held = 0
    for runner in bench.service.runtime.runners():
        expected = sum(map(held_bytes, runner.shard.transactions.values()))
        assert runner.shard.held_bytes == expected
        held += expected
    return held


async def error_of(bench: Bench, transactional_id: str) -> ErrorCode | None:
    try:
        await bench.service.producer(InitProducerId(transactional_id, 0, 60_000, None))
    except ApiError as error:
        return error.error
    return None


def test_too_many_transactional_ids_delay_new_ones_only() -> None:
    async def scenario() -> None:
        bench = await Bench(held_bytes_max=100_000, held_bytes_of_known_ids_max=180_000).up()
        producer = (await bench.init())[1:]
        errors = [await error_of(bench, "x" * 5_000 + str(number)) for number in range(30)]
        assert errors == [None] * 17 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 13
        assert check(bench) < 100_000
        producer = (await bench.init())[1:]
        assert (await bench.add(producer)).error is ErrorCode.NONE
        with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
            await bench.add(producer, MANY)
        assert (await bench.add(producer)).error is ErrorCode.NONE
        check(bench)
        assert (await bench.end(producer)).error is ErrorCode.NONE
        check(bench)
        bench.advance(8 * 86_400_000)
        await bench.service.remove_expired()
        assert check(bench) < 10_000
        await bench.service.producer(InitProducerId("new", 0, 60_000, None))

    asyncio.run(scenario())
