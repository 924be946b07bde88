"""When a member that waits for its coordinator says so, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import Positions
from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.group import GroupMember
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.standing_loop import StandingLoop, run_standing

STEP_S = 0.05
REASON = "Consumer groups wait: __consumer_offsets is to have 3 replicas, alive brokers: 1"


class WithoutCoordinator(KafkaClient):
    """A client that is told, each time it asks, that there is no coordinator."""

    def __init__(self, loop: StandingLoop) -> None:
        super().__init__("127.0.0.1:1")
        self._loop = loop
        self.asked_s: list[float] = []

    async def _connection(self, node_id: int | None) -> Any:
        return SimpleNamespace(version_of=lambda _request: 4, send=self._answer)

    async def _answer(self, _request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        self.asked_s.append(self._loop.time())
        error = Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=REASON)
        return FindCoordinatorResponse(coordinators=[error])


def test_the_coordinators_wait_is_reported_once_after_a_second() -> None:
    """An election is over by then; who waits for longer is to know why."""
    told: list[tuple[float, str, float | None]] = []

    async def work(loop: StandingLoop) -> list[float]:
        def tell(error: ClientError, left_s: float | None) -> None:
            told.append((loop.time(), str(error), left_s))

        client = WithoutCoordinator(loop)
        joining = asyncio.create_task(GroupMember(client, "g", ["t"], Positions(client), on_delay=tell).join())
        while loop.time() < 30:
            for _ in range(10):  # what is due is done, and what that leads to
                await asyncio.sleep(0)
            loop.advance(STEP_S)
        joining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await joining
        return client.asked_s

    asked_s = run_standing(work)
    ((told_s, message, left_s),) = told
    assert message == f"cannot find the coordinator of group g: {REASON} (COORDINATOR_NOT_AVAILABLE)"
    assert left_s is None
    assert 1 < told_s <= 2
    assert asked_s[:5] == pytest.approx([0, 0.1, 0.3, 0.7, 1.5], abs=5 * STEP_S)  # each wait may end a step late
    assert told_s == asked_s[4]
