"""Record real requests and responses of stock clients talking to Apache Kafka, as golden files for the codec's tests.

`python -m tools.golden.record_frames` starts Apache Kafka behind a small recording proxy, runs the compatibility tests
of each client (and some of Kafka's Java tools) through it, and writes `tests/wire/golden_frames/CLIENT.jsonl`: per API,
version and direction the smallest frame and the largest one that is still small. `--client NAME` records one client
only.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.wire import messages
from barnabas.wire.headers import parse_request_header
from tools.foreign.kafka import KafkaServer, kafka_runtime
from tools.processes.server import free_ports

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "tests" / "wire" / "golden_frames"
SMALL_FRAME_BYTES = 1500
LARGEST_FRAME_BYTES = 8000
PYTEST_FOLDERS = {
    "aiokafka": "compat_tests/aiokafka_client",
    "confluent-kafka": "compat_tests/confluent_client",
    "kafka-python": "compat_tests/kafka_python_client",
    "kcat": "compat_tests/kcat_client",
}
JAVA = "java"

FrameKey = tuple[str, int, int, str]
"""Client, API key, API version, `request` or `response`."""


@dataclass
class Recorder:
    """Keeps the smallest frame of each kind, and the largest of the small ones."""

    client: str = ""
    smallest: dict[FrameKey, bytes] = field(default_factory=dict)
    largest_small: dict[FrameKey, bytes] = field(default_factory=dict)

    def add(self, api_key: int, api_version: int, kind: str, frame: bytes) -> None:
        """Consider one frame; frames of APIs or versions without message classes are skipped."""
        if api_key not in messages.API_NAMES or len(frame) > LARGEST_FRAME_BYTES:
            return
        lowest, highest = messages.api(api_key).request_class.VALID_VERSIONS
        if not lowest <= api_version <= highest:
            return
        key = (self.client, api_key, api_version, kind)
        if key not in self.smallest or len(frame) < len(self.smallest[key]):
            self.smallest[key] = frame
        if len(frame) <= SMALL_FRAME_BYTES and len(frame) > len(self.largest_small.get(key, b"")):
            self.largest_small[key] = frame

    def write(self, client: str) -> Path:
        """Write the recorded frames of one client."""
        lines = []
        for key in sorted(key for key in self.smallest if key[0] == client):
            _, api_key, api_version, kind = key
            for frame in dict.fromkeys([self.smallest[key], self.largest_small.get(key, self.smallest[key])]):
                entry = {
                    "api": messages.API_NAMES[api_key],
                    "key": api_key,
                    "version": api_version,
                    "kind": kind,
                    "frame": base64.b64encode(frame).decode(),
                }
                lines.append(json.dumps(entry))
        OUTPUT.mkdir(parents=True, exist_ok=True)
        path = OUTPUT / f"{client}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path


class Proxy:
    """Forwards frames between clients and one broker, and passes each to the recorder."""

    def __init__(self, upstream_port: int, recorder: Recorder) -> None:
        self._upstream_port = upstream_port
        self._recorder = recorder

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, until either side ends it."""
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.close()
            return
        unanswered: deque[tuple[int, int, int]] = deque()
        requests = asyncio.create_task(self._requests(reader, upstream_writer, unanswered))
        responses = asyncio.create_task(self._responses(upstream_reader, writer, unanswered))
        await asyncio.wait({requests, responses}, return_when=asyncio.FIRST_COMPLETED)
        for task in (requests, responses):
            task.cancel()
        await asyncio.gather(requests, responses, return_exceptions=True)
        for each in (writer, upstream_writer):
            each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unanswered: deque[tuple[int, int, int]]
    ) -> None:
        async for frame in _frames(reader, writer):
            header = parse_request_header(frame)
            unanswered.append((header.api_key, header.api_version, header.correlation_id))
            self._recorder.add(header.api_key, header.api_version, "request", frame)

    async def _responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unanswered: deque[tuple[int, int, int]]
    ) -> None:
        async for frame in _frames(reader, writer):
            (correlation_id,) = struct.unpack_from(">i", frame)
            # Requests without a response (acks=0) are skipped.
            while unanswered:
                api_key, api_version, expected = unanswered.popleft()
                if expected == correlation_id:
                    self._recorder.add(api_key, api_version, "response", frame)
                    break


async def _frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    """Each frame, before it is forwarded; ends with the connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            yield frame
            writer.write(size + frame)
            await writer.drain()


async def _run_pytest(folder: str, bootstrap_servers: str) -> None:
    environment = {
        **os.environ,
        "BARNABAS_COMPAT_TARGET": "kafka",
        "BARNABAS_COMPAT_BOOTSTRAP": bootstrap_servers,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "--timeout", "120", folder, cwd=ROOT, env=environment
    )
    await process.wait()


def _java_commands(bootstrap_servers: str) -> list[tuple[str, list[str], str]]:
    """(main class, arguments, standard input) of the most common tools."""
    server = ["--bootstrap-server", bootstrap_servers]
    topic = ["--topic", "java-recorded"]
    group = ["--group", "java-recorded"]
    entity = ["--entity-type", "topics", "--entity-name", "java-recorded"]
    tools = "org.apache.kafka.tools"
    return [
        (f"{tools}.TopicCommand", [*server, "--create", *topic, "--partitions", "2"], ""),
        (f"{tools}.TopicCommand", [*server, "--describe", *topic], ""),
        (f"{tools}.TopicCommand", [*server, "--alter", *topic, "--partitions", "3"], ""),
        (f"{tools}.ConsoleProducer", [*server, *topic, "--compression-codec", "zstd"], "one\ntwo\nthree\n"),
        (
            f"{tools}.consumer.ConsoleConsumer",
            [*server, *topic, *group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"],
            "",
        ),
        (
            f"{tools}.consumer.ConsoleConsumer",
            [
                *(*server, *topic, "--group", "java-new", "--from-beginning", "--max-messages", "3"),
                *("--timeout-ms", "20000", "--command-property", "group.protocol=consumer"),
            ],
            "",
        ),
        (f"{tools}.consumer.group.ConsumerGroupCommand", [*server, "--describe", *group], ""),
        (f"{tools}.consumer.group.ConsumerGroupCommand", [*server, "--list", "--state"], ""),
        (
            f"{tools}.consumer.group.ConsumerGroupCommand",
            [*server, "--reset-offsets", "--to-earliest", "--execute", *topic, *group],
            "",
        ),
        (f"{tools}.consumer.group.ConsumerGroupCommand", [*server, "--delete-offsets", *topic, *group], ""),
        (f"{tools}.consumer.group.ConsumerGroupCommand", [*server, "--delete", *group], ""),
        (f"{tools}.GetOffsetShell", [*server, *topic, "--time", "-1"], ""),
        (
            "kafka.admin.ConfigCommand",
            [
                *server,
                "--alter",
                "--entity-type",
                "topics",
                "--entity-name",
                "java-recorded",
                "--add-config",
                "retention.ms=100000",
            ],
            "",
        ),
        (
            "kafka.admin.ConfigCommand",
            [*server, "--describe", *entity],
            "",
        ),
        ("kafka.admin.ConfigCommand", [*server, "--describe", "--entity-type", "topics"], ""),
        (f"{tools}.ClientMetricsCommand", [*server, "--list"], ""),
        (
            f"{tools}.ProducerPerformance",
            [
                *(*server, *topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1"),
                *("--transactional-id", "java-recorded", "--transaction-duration-ms", "100"),
            ],
            "",
        ),
        (f"{tools}.TransactionsCommand", [*server, "list", "--transactional-id-pattern", "java-.*"], ""),
        (f"{tools}.LogDirsCommand", [*server, "--describe", "--topic-list", "java-recorded"], ""),
        (f"{tools}.ClusterTool", ["cluster-id", *server], ""),
        (f"{tools}.TopicCommand", [*server, "--delete", *topic], ""),
    ]


async def _run_java_tools(bootstrap_servers: str) -> None:
    runtime = kafka_runtime()
    for main_class, arguments, stdin in _java_commands(bootstrap_servers):
        done = await asyncio.to_thread(runtime.tool, main_class, arguments, stdin=stdin)
        if done.returncode != 0:
            print(f"{main_class} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)


async def record(clients: Sequence[str]) -> None:
    """Record the given clients one after the other."""
    (proxy_port,) = free_ports(1)
    bootstrap_servers = f"127.0.0.1:{proxy_port}"
    overrides = {
        "advertised.listeners": f"PLAINTEXT://{bootstrap_servers}",
        "group.initial.rebalance.delay.ms": "0",
    }
    recorder = Recorder()
    server = await asyncio.to_thread(KafkaServer(overrides=overrides).__enter__)
    try:
        upstream_port = int(server.bootstrap_servers.rpartition(":")[2])
        listener = await asyncio.start_server(Proxy(upstream_port, recorder).serve_connection, "127.0.0.1", proxy_port)
        async with listener:
            for client in clients:
                recorder.client = client
                if client == JAVA:
                    await _run_java_tools(bootstrap_servers)
                else:
                    await _run_pytest(PYTEST_FOLDERS[client], bootstrap_servers)
                path = recorder.write(client)
                print(f"{path}: {path.stat().st_size} bytes", file=sys.stderr)
    finally:
        await asyncio.to_thread(server.close)


def main() -> None:
    """Command line of this module."""
    everyone = [*PYTEST_FOLDERS, JAVA]
    parser = argparse.ArgumentParser(prog="python -m tools.golden.record_frames", description=__doc__)
    parser.add_argument("--client", action="append", choices=everyone, help="record this client only; may be repeated")
    asyncio.run(record(parser.parse_args().client or everyone))


if __name__ == "__main__":
    main()
