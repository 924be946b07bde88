"""Processes that tests start and wait for. A process that hangs is reported with its stacks and its last output.

`run` is `subprocess.run` with the common limit of all waits. `finish` does the same for a process that was started
before. On SIGABRT, a Python child prints the stack of each thread (faulthandler, which `environment` turns on); on
SIGQUIT, a Java child does.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.waiting import PATIENCE_S, wait_until

STACKS_S: Final = 10.0
"""The time in which a hanging process must print its stacks."""
LAST_LINES: Final = 80


class ChildHangs(AssertionError):
    """A process did not end; the message holds its stacks and its last lines."""


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a child: this process's or `variables`, with Python's faulthandler turned on."""
    return {**(os.environ if variables is None else variables), "PYTHONFAULTHANDLER": "1"}


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    input: Any = None,
    check: bool = False,
    capture_output: bool = False,
    timeout_s: float = PATIENCE_S,
    stacks_s: float = STACKS_S,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, with the arguments of `subprocess.run`.

    Raises ChildHangs after `timeout_s`, when `stacks_s` more have passed for the stacks; with `check`
    subprocess.CalledProcessError for a status other than 0.
    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, env=environment(env), **options) as process:
        out, err = finish(process, input, timeout_s=timeout_s, stacks_s=stacks_s)
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, out, err)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def finish(
    process: subprocess.Popen[Any], input: Any = None, *, timeout_s: float = PATIENCE_S, stacks_s: float = STACKS_S
) -> tuple[Any, Any]:
    """Wait for a process to end; returns its stdout and stderr, as far as they are pipes.

    Raises ChildHangs after `timeout_s`, when the process has been killed.
    """
    try:
        return process.communicate(input, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        pass
    except BaseException:
        process.kill()
        raise
    ask_for_stacks(process)
    try:
        out, err = process.communicate(timeout=stacks_s)
    except subprocess.TimeoutExpired as late:
        # A grandchild may hold the pipes open: the output read so far must suffice.
        process.kill()
        out, err = late.stdout, late.stderr
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    arguments: Any = process.args
    raise ChildHangs(
        f"{arguments} did not end within {timeout_s:g} s\n--- stdout\n{_tail(out)}\n--- stderr\n{_tail(err)}"
    )


def wait(process: subprocess.Popen[Any], *, timeout_s: float = PATIENCE_S, stacks_s: float = STACKS_S) -> int:
    """Wait for a process to end, and return its status. Its pipes are not read or closed.

    Raises ChildHangs after `timeout_s`, when the process has been killed.
    """
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        finish(process, timeout_s=0, stacks_s=stacks_s)
    return process.returncode


def ask_for_stacks(process: subprocess.Popen[Any]) -> None:
    """Make a process print the stacks of its threads: Python to stderr, after which it ends, and Java to stdout, after
    which it continues.
    """
    is_java = os.path.basename(os.fsdecode(_program(process))) == "java"
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGQUIT if is_java else signal.SIGABRT)


def _program(process: subprocess.Popen[Any]) -> Any:
    arguments: Any = process.args
    return arguments[0] if isinstance(arguments, list | tuple) else arguments


def _tail(text: Any) -> str:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return "\n".join((text or "").splitlines()[-LAST_LINES:])


def pause(pid: int) -> None:
    """Stop a process (SIGSTOP), and return when none of its threads runs any more.

    The signal reaches a thread that runs on another processor a moment later. Until then it may serve one more request.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(state in "tTZX" for state in _thread_states(pid)))


def _thread_states(pid: int) -> Iterator[str]:
    """The states of a process's threads: a letter each (proc(5))."""
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            yield status.read_text().rpartition(")")[2].split()[0]
