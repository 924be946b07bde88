"""Processes that tests start and wait for: what hangs is named, with its stacks and what it printed last.

`run` is `subprocess.run` with the one limit of all waits. `finish` does the same for a process that was started before.
A Python child prints the stack of each thread on SIGABRT (faulthandler, which `environment` turns on), a Java child on
SIGQUIT.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.waiting import PATIENCE_S

STACKS_S: Final = 10.0
"""How long a process that hangs has to print its stacks."""
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
        # A grandchild may hold the pipes open: what was read by then has to do.
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
    """Wait for a process to end, and return its status; its pipes are left as they are.

    Raises ChildHangs after `timeout_s`, when the process has been killed.
    """
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        finish(process, timeout_s=0, stacks_s=stacks_s)
    return process.returncode


def ask_for_stacks(process: subprocess.Popen[Any]) -> None:
    """Have a process print the stacks of its threads to its stderr (Python, which ends) or stdout (Java, which goes
    on)."""
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
