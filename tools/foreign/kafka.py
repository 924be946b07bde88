"""Apache Kafka itself: its jars, its command-line tools and a single KRaft broker, for tests and benchmarks.

`python -m tools.foreign.kafka fetch [VERSION]...` downloads ahead of time;
`python -m tools.foreign.kafka tool CLASS [ARGUMENT]...` runs one of Kafka's main classes;
`python -m tools.foreign.kafka serve` runs a broker until interrupted.
"""

import argparse
import functools
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from barnabas.spark_examples.ivy import Library, fetch
from barnabas.spark_examples.java import cache_folder, find_java
from tools.processes import children
from tools.processes.server import JVM_ENDED_BY_SIGTERM, ServerProcess, free_ports, run_until_interrupted

ORACLE_VERSION = "4.3.0"
ZOOKEEPER_ERA_VERSION = "3.9.1"

SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For short-lived tools: start-up time matters, peak speed does not."""
DEFAULT_BROKER_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""A broker's options from bin/kafka-server-start.sh and bin/kafka-run-class.sh; for benchmarks."""
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
        """The class path for `java -cp`."""
        return f"{self.folder}/*"

    def java_command(
        self, main_class: str, *, jvm_options: Sequence[str] = SMALL_JVM, log_level: str = "WARN"
    ) -> list[str]:
        """The command line that runs a class with Kafka on the class path; log output goes to stderr."""
        logging = _logging_configuration(log_level)
        return [str(find_java()), *jvm_options, *logging, "-cp", self.classpath, main_class]

    def tool(
        self,
        main_class: str,
        arguments: Sequence[str] = (),
        *,
        stdin: str | bytes | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's main classes to its end in a separate process; the output is returned as text (UTF-8).

        Raises children.ChildHangs.
        """
        process = children.run(
            [*self.java_command(main_class), *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        out, err = (stream.decode("utf-8", "replace") for stream in (process.stdout, process.stderr))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@functools.cache
def kafka_runtime(version: str = ORACLE_VERSION) -> KafkaRuntime:
    """A version of Kafka, downloaded from Maven Central if it is missing.

    Raises FetchFailed, JavaMissing.
    """
    libraries = [
        Library("org.apache.kafka", "kafka_2.13", version),
        Library("org.apache.kafka", "kafka-tools", version),
        _LOGGING_LIBRARY.get(version, _LOGGING_LIBRARY[ORACLE_VERSION]),
    ]
    # Kafka Connect is half of the download and is only needed for connect-plugin-path.
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
    """Run Kafka's DumpLogSegments on files of a log directory. Its exit status proves nothing: check the output."""
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
        unfinished = path.with_suffix(f".{threading.get_native_id()}")  # clusters start brokers in threads
        unfinished.write_text(template.replace("LEVEL", level))
        paths.append(unfinished.replace(path))
    return [f"-Dlog4j2.configurationFile={paths[0]}", f"-Dlog4j.configuration=file:{paths[1]}"]


class KafkaServer(ServerProcess):
    """A real Apache Kafka broker, a KRaft single node on the loopback address; a context manager.

    Its internal topics (offsets, transactions, share state) have one replica. `overrides` are lines of
    server.properties. The data directory is a temporary one, deleted at the end, unless `data_dir` is given.
    """

    title = "Apache Kafka"
    clean_status = JVM_ENDED_BY_SIGTERM

    def __init__(
        self,
        *,
        version: str = ORACLE_VERSION,
        overrides: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = SMALL_BROKER_JVM,
        data_dir: Path | None = None,
        ports: tuple[int, int] | None = None,
    ) -> None:
        """`ports` are the ports for clients and for controllers, of all nodes of a cluster if there are several."""
        self._runtime = kafka_runtime(version)
        super().__init__(data_dir)
        self._overrides = dict(overrides or {})
        self._jvm_options = jvm_options
        self._port, self._controller_port = ports or free_ports(2)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        properties = self._write_properties()
        if not (self.log_dir / "meta.properties").exists():
            self._format(properties)
        command = self._runtime.java_command("kafka.Kafka", jvm_options=self._jvm_options, log_level="INFO")
        return [*command, str(properties)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        return any("Kafka Server started" in line for line in logged)

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
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        arguments = ["format", "--cluster-id", "barnabasoracleAAAAAAAA", "--config", str(properties)]
        answer = self._runtime.tool("kafka.tools.StorageTool", arguments)
        if answer.returncode != 0:
            raise RuntimeError(f"formatting {self.log_dir} failed:\n{answer.stdout}{answer.stderr}")


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.foreign.kafka", description=__doc__)
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
    server = KafkaServer(overrides=dict(override.split("=", 1) for override in options.overrides))
    run_until_interrupted(server, f"PLAINTEXT://{server.bootstrap_servers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
