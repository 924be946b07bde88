"""One group with very many members: how soon after the last of them joined there is one stable generation."""

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.waiting import PATIENCE_S, wait_until

PROGRAM = Path(__file__).parent / "group_members.py"
PROCESSES = 2
STABLE_WITHIN_S = 30
HELD_FOR_S = 5
"""Longer than the members' heartbeat interval (3 s): a rebalance that is due would show."""


class Members:
    """One process of members and what it last said."""

    def __init__(self, *arguments: str) -> None:
        self.said: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))

    def joined_at(self, count: int) -> float:
        """When the last of them was told to join; infinity while it was not."""
        return next((float(state["at"]) for state in list(self.said) if state["joining"] == count), float("inf"))

    def generation(self, count: int) -> int | None:
        """The generation they all are in, with partitions; None while they are not."""
        state = self.said[-1] if self.said else {}
        if state.get("assigned") != count or len(state["generations"]) != 1:
            return None
        return int(state["generations"][0])

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends it
        self._reader.join()

    def kill(self) -> None:
        self._process.kill()
        self.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, pytest.param(200, marks=pytest.mark.full)])
def test_one_stable_generation(start_cluster: Any, note: Callable[[str], None], size: int) -> None:
    from compat_tests.conftest import create_topic

    own = start_cluster()
    topic, group = f"group-{secrets.token_hex(4)}", f"large-{secrets.token_hex(4)}"
    create_topic(own.bootstrap_servers, topic, size, None)
    each = size // PROCESSES
    processes = [Members(own.bootstrap_servers, group, topic, str(each)) for _ in range(PROCESSES)]
    try:
        stable_at = _wait_until_stable(processes, each)
        last_join = max(process.joined_at(each) for process in processes)
        generation = processes[0].generation(each)
        time.sleep(HELD_FOR_S)  # Real time: what must not happen is another rebalance
        assert [process.generation(each) for process in processes] == [generation] * PROCESSES
        assert _described(own.bootstrap_servers, group) == ("STABLE", size)
        took = stable_at - last_join
        note(f"{size} members in generation {generation}, stable {took:.1f} s after the last of them began to join")
        assert took < STABLE_WITHIN_S
    finally:
        for process in processes:
            process.kill()
        own.kill()  # nobody needs its logs closed one by one


def _wait_until_stable(processes: list[Members], each: int) -> float:
    """When all were in one generation with partitions for everybody."""

    def is_stable() -> bool:
        generations = {process.generation(each) for process in processes}
        return len(generations) == 1 and None not in generations

    wait_until(is_stable, lambda: f"one generation: {[process.said[-1] for process in processes]}")
    return max(float(process.said[-1]["at"]) for process in processes)


def _described(bootstrap_servers: str, group: str) -> tuple[str, int]:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    description = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return description.state.name, len(description.members)
