"""A server in a separate process: the common parts of Barnabas, Apache Kafka and ZooKeeper."""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from tools.processes import children
from tools.waiting import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK_INTERVAL_S: Final = 0.005
JVM_ENDED_BY_SIGTERM: Final = 128 + signal.SIGTERM
"""The exit status of a Java program that ended on SIGTERM after its shutdown hooks."""


class ServerProcess(ABC):
    """Starts a server, waits until it is ready, and stops it; a context manager. After a stop, it can be started again
    on the same port and data.

    A subclass defines the command, and how to see that the server is ready. `title` is its name in errors. The data is
    in `log_dir`, a temporary folder that is deleted at the end unless it is given as `data_dir`.
    """

    title: str
    start_timeout_s: float = PATIENCE_S
    stop_timeout_s: float = PATIENCE_S
    stacks_s: float = children.STACKS_S
    """The time in which a hanging process must print its stacks."""
    clean_status: int = 0
    """The expected exit status after SIGTERM."""
    working_directory: Path = ROOT
    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables in addition to those of this process."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.title.replace(' ', '-').lower()}-"))
        self.log_dir = data_dir or self._folder / "data"
        self.log_file = self._folder / "server.log"
        self._output_file = self._folder / "server.out"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line, called at each start; it may write files that it names to `_folder`."""

    @abstractmethod
    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        """Whether the server is ready. `printed` are the new lines of its stdout since the last call, `logged` those of
        its stderr.
        """

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, f"{self.title} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and return when it is ready.

        Raises RuntimeError with the end of its log if it does not become ready, and with its stacks if it hangs.
        """
        assert not self.is_running, f"{self.title} is running"
        command = self._command()
        printed, logged = _NewLines(self._output_file), _NewLines(self.log_file)
        with self._output_file.open("ab") as output, self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.working_directory,
                env=children.environment({**os.environ, **self.environment}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + self.start_timeout_s
        has_ended = False
        while not self._is_ready(printed.read(), logged.read()):
            if has_ended or time.monotonic() > deadline:
                if not has_ended:
                    self._show_stacks(self._process)
                self.kill()
                raise RuntimeError(f"{self.title} did not become ready:\n{self.log_tail()}")
            has_ended = self._process.poll() is not None  # its last output is checked once more
            time.sleep(LOOK_INTERVAL_S)

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the server cleanly (SIGTERM).

        Raises RuntimeError with its stacks and the end of its log if it takes longer than `timeout_s` (by default
        `stop_timeout_s`), after which it is killed, or if it ends with an unexpected status.
        """
        self._end(signal.SIGTERM, self.stop_timeout_s if timeout_s is None else timeout_s)

    def kill(self) -> None:
        """Stop the server as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL, self.stop_timeout_s)

    def _end(self, signal_number: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._show_stacks(process)
            process.kill()
            process.wait()
            raise RuntimeError(f"{self.title} did not stop within {timeout_s:g} s:\n{self.log_tail()}") from None
        if signal_number == signal.SIGTERM and status != self.clean_status:
            raise RuntimeError(f"{self.title} ended with status {status}:\n{self.log_tail()}")

    def _show_stacks(self, process: subprocess.Popen[bytes]) -> None:
        """Make a hanging process print its stacks to its log. A Python process ends with that."""
        children.ask_for_stacks(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.stacks_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the server to end by itself. Returns its exit status.

        Raises RuntimeError with its stacks and the end of its log if it does not end; it is killed then.
        """
        assert self._process is not None, f"{self.title} is not running"
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._show_stacks(self._process)
            self.kill()
            raise RuntimeError(f"{self.title} did not end within {timeout_s:g} s:\n{self.log_tail()}") from None
        self._process = None
        return status

    def close(self) -> None:
        """Stop the server for good and delete its files, except for a `data_dir`."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_text(self) -> str:
        """Everything the server logged so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def log_tail(self, lines: int = 100) -> str:
        """The end of the server's log, after the end of its output, for error messages."""
        printed = self._output_file.read_text(errors="replace") if self._output_file.exists() else ""
        return "\n".join([*printed.splitlines()[-lines:], *self.log_text().splitlines()[-lines:]])


class _NewLines:
    """The new lines of a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> list[str]:
        """The complete lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            complete = file.read().rpartition(b"\n")
        self._position += len(complete[0]) + len(complete[1])
        return complete[0].decode(errors="replace").splitlines()


def run_until_interrupted(server: ServerProcess, address: str) -> None:
    """Run a server until SIGINT or SIGTERM; prints `ready: ADDRESS pid=PID` when it is ready."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), server:
        print(f"ready: {address} pid={server.pid}", flush=True)
        signal.pause()


def free_ports(count: int) -> list[int]:
    """Unused TCP ports of the loopback address, for servers that may be stopped and started again. As long as this
    process lives, no outgoing connection gets one of them: a socket stays bound to each.

    A server can bind them nevertheless, with SO_REUSEADDR, as servers of asyncio and Java do.
    """
    bound = [_KEPT.enter_context(socket.socket()) for _ in range(count)]
    for kept in bound:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
    return [kept.getsockname()[1] for kept in bound]


_KEPT: Final = contextlib.ExitStack()
atexit.register(_KEPT.close)
