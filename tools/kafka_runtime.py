"""Apache Kafka itself: its jars, its command-line tools and a single KRaft broker, for tests and benchmarks.

`python -m tools.kafka_runtime fetch [VERSION]...` downloads ahead of time;
`python -m tools.kafka_runtime tool CLASS [ARGUMENT]...` runs one of Kafka's main classes;
`python -m tools.kafka_runtime serve` runs a broker until interrupted.
"""

import argparse
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tools.jvm.ivy import Library, fetch
from tools.jvm.java import cache_folder, find_java

ORACLE_VERSION = "4.3.0"
ZOOKEEPER_ERA_VERSION = "3.9.1"
START_TIMEOUT_S = 90.0

SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For short-lived tools: start-up counts, peak speed does not."""
DEFAULT_BROKER_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""What bin/kafka-server-start.sh and bin/kafka-run-class.sh give a broker; for benchmarks."""
SMALL_BROKER_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

_LOGGING_LIBRARY = {
    ORACLE_VERSION: Library("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ZOOKEEPER_ERA_VERSION: Library("org.slf4j", "slf4j-reload4j", "1.7.36"),
}
_LOG4J2 = """<Configuration status="ERROR"><Appenders><Console name="E" target="SYSTEM_ERR">
<PatternLayout pattern="[%d] %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="LEVEL"><AppenderRef ref="E"/></Root></Loggers></Configuration>
"""
_LOG4J1 = """log4j.rootLogger=LEVEL, E
log4j.appender.E=org.apache.log4j.ConsoleAppender
log4j.appender.E.target=System.err
log4j.appender.E.layout=org.apache.log4j.PatternLayout
log4j.appender.E.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


@dataclass(frozen=True, slots=True)
class KafkaRuntime:
    """One version of Kafka's jars on this machine."""

    version: str
    folder: Path

    @property
    def classpath(self) -> str:
        """For `java -cp`."""
        return f"{self.folder}/*"

    def java_command(
        self, main_class: str, *, jvm_options: Sequence[str] = SMALL_JVM, log_level: str = "WARN"
    ) -> list[str]:
        """The command line that runs a class with Kafka on the class path; its logs go to stderr."""
        logging = _logging_configuration(log_level)
        return [str(find_java()), *jvm_options, *logging, "-cp", self.classpath, main_class]

    def tool(
        self,
        main_class: str,
        arguments: Sequence[str] = (),
        *,
        stdin: str | bytes | None = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's main classes to its end in a process of its own; output comes back as text (UTF-8).

        Raises subprocess.TimeoutExpired.
        """
        process = subprocess.run(
            [*self.java_command(main_class), *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        out, err = (stream.decode("utf-8", "replace") for stream in (process.stdout, process.stderr))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@functools.cache
def kafka_runtime(version: str = ORACLE_VERSION) -> KafkaRuntime:
    """A version of Kafka, fetched from Maven Central where it is not there yet.

    Raises FetchFailed, JavaMissing.
    """
    libraries = [
        Library("org.apache.kafka", "kafka_2.13", version),
        Library("org.apache.kafka", "kafka-tools", version),
        _LOGGING_LIBRARY.get(version, _LOGGING_LIBRARY[ORACLE_VERSION]),
    ]
    # Kafka Connect is half of the download and serves only connect-plugin-path.
    excluded = [("org.apache.kafka", "connect-runtime")]
    folder = cache_folder() / "kafka" / version
    return KafkaRuntime(version, fetch(folder, libraries, excluded=excluded, title=f"Apache Kafka {version}"))


@functools.cache
def connect_runtime() -> KafkaRuntime:
    """Kafka Connect with its file connectors, of the oracle's version.

    Raises FetchFailed, JavaMissing.
    """
    return _with_libraries("connect", ["connect-runtime", "connect-file"])


@functools.cache
def streams_runtime() -> KafkaRuntime:
    """Kafka Streams, of the oracle's version.

    Raises FetchFailed, JavaMissing.
    """
    return _with_libraries("streams", ["kafka-streams"])


def _with_libraries(name: str, libraries: Sequence[str]) -> KafkaRuntime:
    wanted = [Library("org.apache.kafka", library, ORACLE_VERSION) for library in libraries]
    folder = cache_folder() / "kafka" / f"{name}-{ORACLE_VERSION}"
    title = f"Kafka {name.capitalize()} {ORACLE_VERSION}"
    return KafkaRuntime(ORACLE_VERSION, fetch(folder, [*wanted, _LOGGING_LIBRARY[ORACLE_VERSION]], title=title))


def kafka_tool(
    main_class: str, arguments: Sequence[str] = (), *, version: str = ORACLE_VERSION, stdin: str | bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's main classes, for example `kafka_tool("org.apache.kafka.tools.TopicCommand", ["--list"])`."""
    return kafka_runtime(version).tool(main_class, arguments, stdin=stdin)


def dump_log_segments(
    files: Sequence[Path], options: Sequence[str] = (), *, version: str = ORACLE_VERSION
) -> subprocess.CompletedProcess[str]:
    """Run Kafka's DumpLogSegments over files of a log directory. Its exit status proves nothing: read the output."""
    before_4_3 = tuple(int(part) for part in version.split(".")[:2]) < (4, 3)
    main_class = "kafka.tools.DumpLogSegments" if before_4_3 else "org.apache.kafka.tools.DumpLogSegments"
    return kafka_tool(main_class, [*options, "--files", ",".join(map(str, files))], version=version)


@functools.cache
def _logging_configuration(level: str) -> list[str]:
    folder = cache_folder() / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, template in ((f"log4j2-{level}.xml", _LOG4J2), (f"log4j-{level}.properties", _LOG4J1)):
        path = folder / name
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(template.replace("LEVEL", level))
        paths.append(unfinished.replace(path))
    return [f"-Dlog4j2.configurationFile={paths[0]}", f"-Dlog4j.configuration=file:{paths[1]}"]


def free_ports(count: int) -> list[int]:
    """TCP ports nobody listens on at this moment on the loopback address."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class KafkaServer:
    """A real Apache Kafka broker, a KRaft single node on the loopback address; a context manager.

    Topics of its own (offsets, transactions, share state) have one replica. `overrides` are lines of server.properties.
    The data directory is a temporary one, deleted at the end, unless `data_dir` is given.
    """

    def __init__(
        self,
        *,
        version: str = ORACLE_VERSION,
        overrides: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = SMALL_BROKER_JVM,
        data_dir: Path | None = None,
    ) -> None:
        self._runtime = kafka_runtime(version)
        self._overrides = dict(overrides or {})
        self._jvm_options = jvm_options
        self._temporary = tempfile.mkdtemp(prefix="apache-kafka-")
        self.log_dir = data_dir or Path(self._temporary) / "data"
        self.log_file = Path(self._temporary) / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._controller_port = free_ports(2)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def __enter__(self) -> "KafkaServer":
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

    def start(self) -> None:
        """Start the broker and return when it accepts clients.

        Raises RuntimeError with the end of its log when it does not get there.
        """
        properties = self._write_properties()
        if not (self.log_dir / "meta.properties").exists():
            self._format(properties)
        with self.log_file.open("ab") as log:
            command = self._runtime.java_command("kafka.Kafka", jvm_options=self._jvm_options, log_level="INFO")
            self._process = subprocess.Popen(
                [*command, str(properties)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            offset = log.tell()
        self._wait_until_ready(offset)

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the broker cleanly (SIGTERM), by force if it takes too long."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Stop the broker as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL, 30)

    def close(self) -> None:
        """Stop the broker and delete its temporary files."""
        self.stop()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def log_tail(self, lines: int = 60) -> str:
        """The end of the broker's log."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def _write_properties(self) -> Path:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._overrides,
        }
        path = Path(self._temporary) / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        arguments = ["format", "--cluster-id", "barnabasoracleAAAAAAAA", "--config", str(properties)]
        answer = self._runtime.tool("kafka.tools.StorageTool", arguments)
        if answer.returncode != 0:
            raise RuntimeError(f"formatting {self.log_dir} failed:\n{answer.stdout}{answer.stderr}")

    def _wait_until_ready(self, offset: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.log_file.open("rb") as log:
            log.seek(offset)
            line = b""
            while time.monotonic() < deadline:
                line += log.readline()  # only what is new: with many partitions the log is long
                if b"Kafka Server started" in line:
                    return
                if line.endswith(b"\n"):
                    line = b""
                elif self._process.poll() is not None:
                    break
                else:
                    time.sleep(0.01)
        raise RuntimeError(f"Apache Kafka did not start:\n{self.log_tail()}")

    def _end(self, signal_number: int, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serve(overrides: Mapping[str, str]) -> int:
    with KafkaServer(overrides=overrides) as server:
        print(f"ready: PLAINTEXT://{server.bootstrap_servers} pid={server.pid}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.kafka_runtime", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch_command = commands.add_parser("fetch", help="download Kafka ahead of time")
    fetch_command.add_argument("versions", nargs="*", default=[ORACLE_VERSION, ZOOKEEPER_ERA_VERSION])
    tool_command = commands.add_parser("tool", help="run one of Kafka's main classes")
    tool_command.add_argument("--version", default=ORACLE_VERSION)
    tool_command.add_argument("main_class")
    tool_command.add_argument("arguments", nargs=argparse.REMAINDER)
    serve_command = commands.add_parser("serve", help="run a broker until interrupted")
    serve_command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="lines of server.properties")
    options = parser.parse_args()
    if options.command == "fetch":
        for version in options.versions:
            kafka_runtime(version)
        return 0
    if options.command == "tool":
        command = kafka_runtime(options.version).java_command(options.main_class)
        return subprocess.run([*command, *options.arguments], check=False).returncode
    return _serve(dict(override.split("=", 1) for override in options.overrides))


if __name__ == "__main__":
    sys.exit(main())
