"""How servers of tests start and end, on one of a few lines of Python."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tools.processes.server import ServerProcess
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.live

SERVES = "print('ready', flush=True); signal.pause()"
STOPS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
STAYS = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


class Little(ServerProcess):
    title = "a little server"
    stacks_s = 20.0

    def __init__(self, program: str, data_dir: Path | None = None) -> None:
        super().__init__(data_dir)
        self.program = f"import signal, sys, time; print('begins', file=sys.stderr); {program}"
        self.answers = 0

    def _command(self) -> list[str]:
        return [sys.executable, "-c", self.program]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        self.answers += len(printed)
        return "ready" in printed


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_process_stops_and_starts_again() -> None:
    with Little(STOPS + SERVES) as server:
        first = server.pid
        assert server.log_text() == "begins\n"
        server.stop()
        assert has_ended(first)
        server.start()
        assert server.answers == 2, "what it said at its first start is not read again"
        server.kill()
        assert server.log_text() == "begins\nbegins\n"
        server.start()
        last, folder = server.pid, server.log_file.parent
    assert has_ended(last)
    assert not folder.exists()


def test_data_of_the_callers_own_stay(tmp_path: Path) -> None:
    with Little(STOPS + SERVES, tmp_path) as server:
        assert server.log_dir == tmp_path
    assert tmp_path.exists()


def test_a_start_that_fails_shows_what_was_said() -> None:
    with (
        pytest.raises(RuntimeError, match=r"a little server did not become ready:\nno\nbegins\noops$"),
        Little("print('no'); sys.exit('oops')"),
    ):
        pass


def test_a_server_that_is_ready_and_dies_was_ready() -> None:
    server = Little("print('ready')")
    server.start()
    assert server.wait(PATIENCE_S) == 0
    server.close()


def test_a_start_that_takes_too_long_is_ended() -> None:
    server = Little("signal.pause()")
    server.start_timeout_s = 0.2
    with pytest.raises(RuntimeError, match="did not become ready"):
        server.start()
    with pytest.raises(AssertionError, match="is not running"):
        _ = server.pid
    server.close()


def test_a_slow_stop_shows_stacks_and_ends_the_process() -> None:
    server = Little(STAYS + SERVES)
    server.start()
    pid = server.pid
    with pytest.raises(
        RuntimeError, match=r"(?s)a little server did not stop within 0.2 s:\nready\nbegins\n.*in <module>"
    ):
        server.stop(timeout_s=0.2)  # Real time: in vain
    assert has_ended(pid)
    server.close()


@pytest.mark.parametrize("program", [SERVES, STOPS.replace("(0)", "(3)") + SERVES], ids=["by the signal", "status 3"])
def test_another_status_is_told(program: str) -> None:
    server = Little(program)
    server.start()
    with pytest.raises(RuntimeError, match=r"a little server ended with status (-15|3):"):
        server.stop()
    server.close()


def test_a_process_that_ended_before_its_stop_is_reported() -> None:
    server = Little("print('ready', flush=True); sys.exit('gone')")
    server.start()
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its status is left for `stop`
    with pytest.raises(RuntimeError, match=r"ended with status 1:\nready\nbegins\ngone$"):
        server.stop()
    server.close()


def test_waiting_for_its_end() -> None:
    server = Little(SERVES)
    server.start()
    os.kill(server.pid, signal.SIGKILL)
    assert server.wait(PATIENCE_S) == -signal.SIGKILL
    server.close()


def test_an_end_that_does_not_come_is_told_with_its_stacks() -> None:
    server = Little(SERVES)
    server.start()
    with pytest.raises(RuntimeError, match=r"(?s)a little server did not end within 0.01 s:.*in <module>"):
        server.wait(0.01)  # Real time: in vain
    assert not server.is_running
    server.close()
