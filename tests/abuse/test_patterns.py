"""Attacks with regular expressions: transactional ids compared with expressions that were made to be slow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tools.attack.hostile import MIB, HealthyClient, Memory, answer, ask, connect, eventually, frame
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live]
Figure = Callable[..., None]
FULL = [pytest.mark.full, pytest.mark.timeout(1800)]

SLOW = ("(a|b)*a(a|b){40}", "(.*a){10}", r"(?i)" + r"\pL" * 150)
"""Many states for its bytes, many instructions at once, much to compile."""


@pytest.mark.parametrize(("count", "rounds"), [(4, 1), pytest.param(30, 5, marks=FULL)])
def test_a35_slow_regular_expressions(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, rounds: int
) -> None:
    """Connections that all list the ids that match such an expression, over 50 ids of 15 KB each."""
    healthy.rate_min = 5
    with connect(broker.bootstrap_servers) as connection, contextlib.ExitStack() as stack:
        find = FindCoordinatorRequest(key="x", key_type=1)
        assert eventually(lambda: ask(connection, find, 2, FindCoordinatorResponse).error_code == 0)
        for number in range(50):
            init = InitProducerIdRequest(
                transactional_id=f"{number:02}" + "abba" * 3_750, transaction_timeout_ms=60_000
            )
            assert eventually(
                lambda init=init: ask(connection, init, 4, InitProducerIdResponse).error_code == 0,
            )
        requests = [ListTransactionsRequest(transactional_id_pattern=pattern) for pattern in SLOW]
        connections = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(count)]
        memory.mark()
        healthy.mark()
        errors = set()
        for _ in range(rounds):
            for request in requests:
                for attacker in connections:
                    attacker.sendall(frame(request, 2))
                for attacker in connections:
                    errors.add(ErrorCode(answer(attacker, request, 2, ListTransactionsResponse).error_code))
    figure(lists=rounds * len(requests) * count, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert errors <= {ErrorCode.NONE, ErrorCode.INVALID_REGULAR_EXPRESSION}
    assert memory.growth <= 16 * MIB
