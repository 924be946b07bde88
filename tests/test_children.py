"""The output of a child that hangs is in the failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_child_that_hangs_shows_its_stacks_and_its_last_lines() -> None:
    program = "import time\ndef stands_still():\n time.sleep(600)\nprint('its last line', flush=True)\nstands_still()"
    with pytest.raises(children.ChildHangs, match=r"(?s)its last line.*stands_still"):
        children.run(python(program), capture_output=True, text=True, timeout_s=0.5)


def test_a_child_that_hears_no_signal_is_killed_all_the_same() -> None:
    program = "import os, signal, sys, time\nos.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(children.ChildHangs):
        children.run(python(program), capture_output=True, timeout_s=0.2, stacks_s=0.2)


def test_a_grandchild_with_the_pipes_does_not_delay_the_test() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    with pytest.raises(children.ChildHangs) as raised:
        children.run(python(program), capture_output=True, text=True, timeout_s=2, stacks_s=0.2)
    grandchild = int(str(raised.value).partition("--- stdout\n")[2].split()[0])
    os.kill(grandchild, 9)


def test_a_child_that_ends_is_told_as_subprocess_tells_it() -> None:
    ended = children.run(python("print(input())"), input="heard\n", capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "heard\n")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        children.run(python("import sys; print('why', file=sys.stderr); sys.exit(3)"), check=True, capture_output=True)
    assert (raised.value.returncode, raised.value.stderr) == (3, b"why\n")


def test_a_paused_process_does_nothing_more() -> None:
    busy = "import threading\ndef spin():\n while True: pass\nthreading.Thread(target=spin).start()\nspin()"

    def state_and_ticks() -> tuple[str, ...]:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], *fields[11:13]

    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        try:
            children.pause(process.pid)
            before = state_and_ticks()
            assert before[0] == "T"
            sum(range(1_000_000))
            assert state_and_ticks() == before
        finally:
            process.kill()
