"""The real command, `python -m barnabas serve`, in a separate process, for tests, demonstrations and benchmarks."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.processes import children
from tools.processes.server import ServerProcess
from tools.processes.settled import wait_settled

READY_LINE = re.compile(r"ready: PLAINTEXT://(?P<address>\S+) node\.id=(?P<node_id>\d+) cluster\.id=(\S+)")


def run_module(module: str) -> list[str]:
    """The command that runs a module of Python; one argument for it may follow after a colon."""
    name, _, argument = module.partition(":")
    return [sys.executable, "-m", name, *([argument] if argument else [])]


class BarnabasProcess(ServerProcess):
    """`python -m barnabas serve` on a free port and an empty data directory; a context manager.

    `overrides` are Kafka's configuration keys. After a stop, the process can be started again on the same port and
    data, also with another `module`.
    """

    title = "barnabas"

    def __init__(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        module: str = "barnabas",
        data_dir: Path | None = None,
    ) -> None:
        """`module` is the Python module to run instead of `barnabas`; one argument for it may follow after a colon.

        A `data_dir` passed by the caller is not removed at the end.
        """
        super().__init__(data_dir)
        self._overrides = dict(overrides or {})
        self._listen = listen
        self._address = listen
        self.module = module
        self.node_id = -1

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients."""
        return self._address

    @property
    def _serve(self) -> list[str]:
        return [*run_module(self.module), "serve"]

    def _command(self) -> list[str]:
        command = [*self._serve, "--listen", self._listen]
        if "log.dirs" not in self._overrides:
            command += ["--data-dir", str(self.log_dir)]
        for key, value in self._overrides.items():
            command += ["--override", f"{key}={value}"]
        return command

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        ready = next(filter(None, map(READY_LINE.fullmatch, printed)), None)
        if ready is None:
            return False
        self._address, self.node_id = ready["address"], int(ready["node_id"])
        if self._listen.endswith(":0"):
            self._listen = self._address  # after a restart clients find the broker at the same address
        return True


class BarnabasZooKeeper(ServerProcess):
    """`python -m barnabas zookeeper` on a free port, with a database file; a context manager. After a kill, the process
    can be started again on the same port and file. A `config` may have the ports, and one with TLS.
    """

    title = "barnabas zookeeper"

    def __init__(
        self,
        *,
        listen: str = "127.0.0.1:0",
        module: str = "barnabas",
        data_dir: Path | None = None,
        config: Path | None = None,
    ) -> None:
        """`module` as in `BarnabasProcess`."""
        super().__init__(data_dir)
        self._module = module
        self.address = "" if config is not None else listen
        self.secure_address: str | None = None
        """HOST:PORT with TLS. The host is a name, with which certificates are compared."""
        self._config = config

    def _command(self) -> list[str]:
        self.log_dir.mkdir(exist_ok=True)
        command = [*run_module(self._module), "zookeeper", "--file", str(self.log_dir / "zookeeper.sqlite")]
        command += ["--listen", self.address] if self.address else []
        return command if self._config is None else [*command, "--config", str(self._config)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        ready = next((line for line in printed if line.startswith("ready: ")), None)
        for address in [] if ready is None else ready.removeprefix("ready: ").split():
            if address.startswith("secure="):
                self.secure_address = f"localhost:{address.rpartition(':')[2]}"
            else:
                self.address = address
        return ready is not None


class BarnabasBrokers(ServerProcess):
    """`python -m barnabas serve --brokers N` on free ports; a context manager. After a stop and a new start, each
    broker has the same port and data; `count` may change the number of brokers then. The start returns when all brokers
    know each other.
    """

    title = "barnabas brokers"

    def __init__(
        self,
        count: int = 3,
        overrides: Mapping[str, str] | None = None,
        *,
        module: str = "barnabas",
        data_dir: Path | None = None,
    ) -> None:
        """`module` as in `BarnabasProcess`."""
        super().__init__(data_dir)
        self._module = module
        self.count = count
        self._overrides = dict(overrides or {})
        self.ready_line = ""

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each broker, in the order of their ids."""
        return self.ready_line.split()[1].replace("PLAINTEXT://", "").split(",")

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT,... for clients."""
        return ",".join(self.addresses)

    @property
    def node_ids(self) -> list[int]:
        """The ids of the brokers."""
        return [int(text) for text in self.ready_line.split()[2].removeprefix("node.id=").split(",")]

    def start(self, *, heard: bool = True) -> None:
        """Like `ServerProcess.start`; with `heard`, all brokers know each other and are in sync on return."""
        super().start()
        if heard:
            self.wait_settled()

    def wait_settled(self, *topics: str) -> None:
        """Wait until all brokers live, have applied the controller's decisions, and know these topics."""
        wait_settled(self.addresses, topics)

    def broker_pid(self, node_id: int) -> int:
        """The process id of a broker, from the parent's note; 0 while it has no process."""
        pid: int = json.loads((self.log_dir / "brokers.json").read_text())[str(node_id)]["pid"]
        return pid

    def kill_broker(self, node_id: int) -> None:
        """`kill -9` of one broker."""
        os.kill(self.broker_pid(node_id), signal.SIGKILL)

    def kill_parent(self) -> None:
        """`kill -9` of the parent alone: the brokers keep running."""
        super().kill()

    def kill(self) -> None:
        """`kill -9` of all processes, the parent first, because it would start brokers again. If this parent never
        became ready, only its own children are killed: the noted processes may belong to another parent that uses the
        directory.
        """
        if self.ready_line:
            super().kill()
            pids = self._noted_pids()
        else:
            pids = self._children(self.pid) if self.is_running else []
            super().kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _noted_pids(self) -> list[int]:
        """The process ids of the brokers, from the latest parent's note."""
        note = self.log_dir / "brokers.json"
        noted = json.loads(note.read_text()) if note.exists() else {}
        return [each["pid"] for each in noted.values() if each["pid"]]

    def _show_stacks(self, process: subprocess.Popen[bytes]) -> None:
        """Also print the stacks of the brokers, which end with the parent."""
        for pid in self._children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        os.kill(process.pid, signal.SIGCONT)
        super()._show_stacks(process)

    def _children(self, parent_pid: int) -> list[int]:
        """The child processes of the parent. The parent is stopped (SIGSTOP) from here on and forks no more."""
        children.pause(parent_pid)
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # PID (NAME) STATE PPID ...; a name may hold spaces and parentheses.
                parent = path.read_text().rpartition(")")[2].split()[1]
                if int(parent) == parent_pid:
                    found.append(int(path.parent.name))
        return found

    def _command(self) -> list[str]:
        command = [*run_module(self._module), "serve", "--brokers", str(self.count)]
        command += ["--listen", "127.0.0.1:0", "--data-dir", str(self.log_dir)]
        for key, value in self._overrides.items():
            command += ["--override", f"{key}={value}"]
        return command

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        self.ready_line = next((line for line in printed if line.startswith("ready: ")), self.ready_line)
        return any(line.startswith("ready: ") for line in printed)


class BarnabasControl(BarnabasProcess):
    """`python -m barnabas serve --control` on free ports; a context manager. `url` is the address of the control API
    for faults and other brokers.
    """

    title = "barnabas control"

    def __init__(self, *arguments: str, module: str = "barnabas") -> None:
        super().__init__(module=module)
        self._arguments = arguments
        self.url = ""

    def _command(self) -> list[str]:
        listen = ["--listen", self._listen, "--control", "127.0.0.1:0"]
        return [*self._serve, *listen, *self._arguments]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        ready = [line.partition(" control=") for line in printed]
        self.url = next((url for _, _, url in ready if url), self.url)
        return super()._is_ready([line for line, _, _ in ready], logged)
