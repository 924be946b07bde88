"""The real command, `python -m barnabas serve`, in a process of its own: for tests, demonstrations and benchmarks."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30
READY_LINE = re.compile(r"ready: PLAINTEXT://(?P<address>\S+) node\.id=(?P<node_id>\d+) cluster\.id=(\S+)")


class BarnabasProcess:
    """`python -m barnabas serve` on a free port and an empty data directory; a context manager.

    `overrides` are Kafka's configuration keys. Stopped and started again it keeps its port and its data; `module` may
    be another one then.
    """

    def __init__(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        module: str = "barnabas",
        data_dir: Path | None = None,
    ) -> None:
        """`module` is what Python runs instead of `barnabas`, with one argument of its own after a colon.

        A `data_dir` of the caller's own is left alone at the end.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-"))
        self.log_dir = data_dir or self._folder / "data"
        self._log_file = self._folder / "server.log"
        self._overrides = dict(overrides or {})
        self._process: subprocess.Popen[str] | None = None
        self._listen = listen
        self._address = listen
        self.module = module
        self.node_id = -1

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients."""
        return self._address

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the broker and return when it has said that it is ready.

        Raises RuntimeError with its log when it does not get there.
        """
        module, _, argument = self.module.partition(":")
        command = [sys.executable, "-m", module, *([argument] if argument else []), "serve", "--listen", self._listen]
        command += ["--data-dir", str(self.log_dir)]
        for key, value in self._overrides.items():
            command += ["--override", f"{key}={value}"]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        ready = READY_LINE.fullmatch(self._first_line())
        if ready is None:
            self.kill()
            raise RuntimeError(f"barnabas did not become ready:\n{self.log_text()}")
        self._address, self.node_id = ready["address"], int(ready["node_id"])
        if self._listen.endswith(":0"):
            self._listen = self._address  # after a restart clients find the broker where it was

    def _first_line(self) -> str:
        """The first line of stdout, or nothing when the process ends or stays silent."""
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout
        lines: Queue[str] = Queue()
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            return lines.get(timeout=READY_TIMEOUT_S).strip()
        except Empty:
            return ""

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the broker cleanly.

        Raises RuntimeError when it takes too long or ends with a status other than 0.
        """
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Stop the broker as a crash would."""
        self._end(signal.SIGKILL, STOP_TIMEOUT_S)

    def _end(self, signal_number: int, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"barnabas did not stop within {timeout_s:g} s:\n{self.log_text()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        if signal_number == signal.SIGTERM and status != 0:
            raise RuntimeError(f"barnabas ended with status {status}:\n{self.log_text()}")

    def wait(self, timeout_s: float) -> int:
        """Wait for the broker to end by itself; its exit status. Raises subprocess.TimeoutExpired."""
        process = self._process
        assert process is not None, "the broker is not running"
        status = process.wait(timeout_s)
        self.kill()
        return status

    def __enter__(self) -> "BarnabasProcess":
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

    def close(self) -> None:
        """Stop the broker for good and delete what it wrote."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def log_text(self) -> str:
        """Everything the broker logged so far."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
