"""The parent of `serve --brokers`, whose brokers are here processes that do nothing: what it makes of their lives."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.cli.broker_plans import BrokerPlan
from barnabas.broker.cli.cluster_directory import NOTE_FILE
from barnabas.broker.cli.supervisor import RESTARTS_MAX, RESTARTS_PERIOD_S, RestartBudget, Supervisor
from barnabas.storage.checkpoints import LOCK_FILE
from tools.waiting import PATIENCE_S, until


def plans(directory: Path, listeners: str | None) -> list[BrokerPlan]:
    return [
        BrokerPlan(
            number,
            {"listeners": listeners or f"PLAINTEXT://127.0.0.1:{number}"},
            0,
            [str(directory / f"broker{number}")],
        )
        for number in (1, 2)
    ]


class Parent:
    """A supervisor of brokers 1 and 2, and what forks for it."""

    def __init__(self, directory: Path, listeners: str | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.supervisor = Supervisor(self.loop, directory, plans(directory, listeners))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self.says: dict[int, int] = {}
        self.loop.run_until_complete(self.supervisor.open())

    def next_start(self) -> BrokerPlan | None:
        return self.loop.run_until_complete(asyncio.wait_for(self.supervisor.next_start(), PATIENCE_S))

    def start_next(self) -> int:
        """Start the broker that is due; its id."""
        plan = self.next_start()
        assert plan is not None
        output, self.says[plan.node_id] = os.pipe()
        self.processes[plan.node_id] = process = subprocess.Popen(["sleep", "600"])
        self._started.append(process)
        self.supervisor.started(plan, process.pid, output)
        return plan.node_id

    def say_ready(self, node_id: int) -> None:
        os.write(self.says[node_id], f"ready: PLAINTEXT://127.0.0.1:{node_id} node.id={node_id}\n".encode())

    def wait_for(self, seen: Callable[[], bool]) -> None:
        """Run the loop, which hears of processes and what they say, until something is seen."""
        self.loop.run_until_complete(until(seen))

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for output in self.says.values():
            os.close(output)
        self.supervisor.close()
        self.loop.close()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    parent = Parent(tmp_path)
    yield parent
    parent.close()


def test_the_start_waits_for_a_ready_broker_that_died(parent: Parent, capsys: pytest.CaptureFixture[str]) -> None:
    assert [parent.start_next(), parent.start_next()] == [1, 2]
    parent.say_ready(1)
    parent.wait_for(lambda: parent.supervisor._children[0].is_ready)
    parent.processes[1].kill()
    assert parent.start_next() == 1
    parent.say_ready(2)
    parent.wait_for(lambda: parent.supervisor._children[1].is_ready)
    assert capsys.readouterr().out == ""
    parent.say_ready(1)
    parent.wait_for(lambda: parent.supervisor._children[0].is_ready)
    assert capsys.readouterr().out.startswith("ready: PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2 node.id=1,2 ")


def test_a_broker_killed_before_it_is_ready_is_started_again(parent: Parent) -> None:
    assert [parent.start_next(), parent.start_next()] == [1, 2]
    parent.processes[1].kill()
    assert parent.start_next() == 1
    assert parent.supervisor.status == 0


def test_a_broker_that_gets_no_process_ends_all(parent: Parent, caplog: pytest.LogCaptureFixture) -> None:
    assert parent.start_next() == 1
    plan = parent.next_start()
    assert plan is not None
    parent.supervisor.could_not_start(plan, "Resource temporarily unavailable")
    assert parent.next_start() is None, "when the other one has ended"
    assert parent.processes[1].poll() is not None
    assert parent.supervisor.status == 1
    assert "broker 2 could not start (Resource temporarily unavailable): all brokers are stopped" in caplog.text


def test_brokers_go_on_when_the_note_cannot_be_written(
    parent: Parent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NOTE_FILE).with_suffix(".tmp").mkdir()
    assert [parent.start_next(), parent.start_next()] == [1, 2]
    parent.say_ready(1)
    parent.wait_for(lambda: parent.supervisor._children[0].is_ready)
    assert f"{tmp_path / NOTE_FILE} cannot be written (Is a directory)" in caplog.text


def test_a_former_brokers_end_is_seen_after_a_failed_lock_check(parent: Parent, tmp_path: Path) -> None:
    """A directory in the lock's place is no lock that can be opened, as if there were no descriptor left."""
    assert [plan and plan.node_id for plan in (parent.next_start(), parent.next_start())] == [1, 2]
    child = parent.supervisor._children[0]
    child.plan = replace(child.plan, former_pid=os.getpid())
    lock = tmp_path / "broker1" / LOCK_FILE
    lock.mkdir(parents=True)
    parent.supervisor._adopt(child)
    parent.loop.run_until_complete(asyncio.sleep(0))  # the first look at the lock
    assert not child.has_ended.is_set()
    lock.rmdir()
    plan = parent.next_start()
    assert plan is child.plan


def test_a_chosen_port_taken_by_another_process_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of the broker that had it are chosen again; the others' are kept."""

    def listeners() -> list[str]:
        parent = Parent(tmp_path, "A://127.0.0.1:0,B://127.0.0.1:0")
        try:
            return [child.plan.configs["listeners"] for child in parent.supervisor._children]
        finally:
            parent.close()

    first = listeners()
    assert listeners() == first
    port = first[0].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))):
        second = listeners()
    assert f"another program has taken B://127.0.0.1:{port}: " in caplog.text
    assert port not in second[0]
    assert second[1] == first[1]
    assert listeners() == second, "which is noted"


def test_old_deaths_do_not_count() -> None:
    budget = RestartBudget()
    assert all(budget.allows(float(second)) for second in range(RESTARTS_MAX))
    assert not RestartBudget(list(budget.deaths_s)).allows(RESTARTS_PERIOD_S - 1)
    assert budget.allows(RESTARTS_PERIOD_S)
