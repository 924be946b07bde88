"""A real ZooKeeper 3.9, out of PySpark's jars: one server on loopback, for tests and for trying things out.

`python -m tools.foreign.zookeeper` runs one until interrupted, after `make prepare`.
"""

import argparse
import contextlib
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from barnabas.spark_examples.ivy import FetchFailed, pyspark_jars
from barnabas.spark_examples.java import JavaMissing, find_java
from tools.processes.server import JVM_ENDED_BY_SIGTERM, ServerProcess, free_ports, run_until_interrupted

ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""The configuration of a broker that is the only one of its cluster."""

NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
JARS = ("zookeeper-", "slf4j-api-", "metrics-core-", "netty-", "snappy-java-", "commons-cli-", "audience-annotations-")
"""Prefixes of the names of the jars that the server needs; without a logging library it prints no log."""
JVM = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SETTINGS = {
    "zookeeper.admin.enableServer": "false",
    "zookeeper.forceSync": "no",  # killed processes lose no data; only a power cut would
    "zookeeper.preAllocSize": "64",  # KiB; the default is 64 MiB per log file
}


class ZooKeeperServer(ServerProcess):
    """A server with a separate data directory; a context manager. After a stop, it can be started again on the same
    port and data, including the sessions.

    `tick_ms` bounds the sessions' timeouts: they are 2 to 20 ticks. `configs` are further lines of its configuration,
    `properties` of its JVM. With `is_secure` it has a port with TLS, too (`secure_address`).
    """

    title = "ZooKeeper"
    clean_status = JVM_ENDED_BY_SIGTERM

    def __init__(
        self,
        *,
        tick_ms: int = 500,
        port: int = 0,
        data_dir: Path | None = None,
        configs: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        is_secure: bool = False,
    ) -> None:
        super().__init__(data_dir)
        self._tick_ms = tick_ms
        self._port, self._secure_port = (port, 0) if port else free_ports(2)
        self._configs = dict(configs or {})
        self._properties = {**SETTINGS, **(properties or {})}
        if is_secure:
            self._configs |= {"secureClientPort": str(self._secure_port), "secureClientPortAddress": "127.0.0.1"}
            self._properties["zookeeper.serverCnxnFactory"] = NETTY

    @property
    def address(self) -> str:
        """HOST:PORT, a connect string."""
        return f"127.0.0.1:{self._port}"

    @property
    def secure_address(self) -> str:
        """HOST:PORT with TLS. The host is a name, with which certificates are compared."""
        return f"localhost:{self._secure_port}"

    def _command(self) -> list[str]:
        configuration = self._folder / "zoo.cfg"
        configuration.write_text(
            f"dataDir={self.log_dir}\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime={self._tick_ms}\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n"
            + "".join(f"{key}={value}\n" for key, value in self._configs.items())
        )
        properties = [f"-D{key}={value}" for key, value in self._properties.items()]
        jars = sorted(jar for jar in pyspark_jars().glob("*.jar") if jar.name.startswith(JARS))
        return [str(find_java()), *JVM, *properties, "-cp", ":".join(map(str, jars)), MAIN_CLASS, str(configuration)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.makefile("rb").read()  # otherwise it is not serving requests yet
        return False


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.foreign.zookeeper", description=__doc__)
    parser.add_argument("--port", type=int, default=2181)
    parser.add_argument("--data-dir", type=Path, help="kept afterwards; by default a temporary folder")
    parser.add_argument("--tick-ms", type=int, default=2000)
    options = parser.parse_args()
    server = ZooKeeperServer(tick_ms=options.tick_ms, port=options.port, data_dir=options.data_dir)
    try:
        run_until_interrupted(server, server.address)
    except (FetchFailed, JavaMissing) as missing:
        print(f"{missing} (`make prepare` installs what this needs)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
