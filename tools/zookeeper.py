"""A real ZooKeeper 3.9, out of PySpark's jars: one server on loopback, for tests and for trying things out.

`python -m tools.zookeeper` runs one until interrupted, after `make prepare`.
"""

import argparse
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tools.jvm.ivy import FetchFailed, pyspark_jars
from tools.jvm.java import JavaMissing, find_java

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
JARS = ("zookeeper-", "slf4j-api-", "metrics-core-", "netty-", "snappy-java-", "commons-cli-", "audience-annotations-")
"""Beginnings of the names of the jars that the server needs; without a logging library it is silent."""
JVM = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SETTINGS = {
    "zookeeper.admin.enableServer": "false",
    "zookeeper.forceSync": "no",  # a killed process loses nothing; only a power cut would
    "zookeeper.preAllocSize": "64",  # KiB; the default is 64 MiB per log file
}
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class ZooKeeperServer:
    """A server with a data directory of its own; a context manager. Stopped and started again it keeps port and data.

    `tick_ms` bounds the sessions' timeouts: they last 2 to 20 ticks.
    """

    def __init__(self, *, tick_ms: int = 500, port: int = 0, data_dir: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-zookeeper-"))
        self._data_dir = data_dir or self._folder / "data"
        self._tick_ms = tick_ms
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, a connect string."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "ZooKeeper is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it answers.

        Raises RuntimeError with its output when it does not.
        """
        self._port = self._port or _free_port()
        configuration = self._folder / "zoo.cfg"
        configuration.write_text(
            f"dataDir={self._data_dir}\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime={self._tick_ms}\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n"
        )
        properties = [f"-D{key}={value}" for key, value in SETTINGS.items()]
        jars = sorted(jar for jar in pyspark_jars().glob("*.jar") if jar.name.startswith(JARS))
        command = [str(find_java()), *JVM, *properties, "-cp", ":".join(map(str, jars)), MAIN_CLASS, str(configuration)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                connection.sendall(b"srvr")
                if b"Mode:" in connection.makefile("rb").read():  # else it is not serving requests yet
                    return
            time.sleep(0.05)
        output = (self._folder / "server.log").read_text(errors="replace")
        self.kill()
        raise RuntimeError(f"ZooKeeper did not start:\n{output}")

    def stop(self) -> None:
        """Stop the server; its sessions live on in its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop the server as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop the server for good and delete its data, if the folder is its own."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "ZooKeeperServer":
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.zookeeper", description=__doc__)
    parser.add_argument("--port", type=int, default=2181)
    parser.add_argument("--data-dir", type=Path, help="kept afterwards; by default a temporary folder")
    parser.add_argument("--tick-ms", type=int, default=2000)
    options = parser.parse_args()
    try:
        with ZooKeeperServer(tick_ms=options.tick_ms, port=options.port, data_dir=options.data_dir) as server:
            print(f"ready: {server.address} pid={server.pid}", flush=True)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except (FetchFailed, JavaMissing) as missing:
        print(f"{missing} (`make prepare` installs what this needs)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
