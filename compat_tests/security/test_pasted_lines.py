"""The lines that `serve --secure` prints for each client, pasted as they are into a new project: it sends a record and
reads it. (Spark's are in `../spark`.)"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from barnabas.broker.configuration.properties import parse_properties
from tests.support.reference_loop import assert_within, process_s
from tests.support.required import tool_missing
from tools.foreign.kafka import kafka_tool
from tools.foreign.languages import ToolchainMissing, find_go, find_node, go_environment, node_modules
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

COMPAT_TESTS: Final = Path(__file__).parents[1]
PYTHON: Final = {
    "librdkafka": """
        producer.produce("of-librdkafka", b"hello")
        assert producer.flush() == 0
        consumer = Consumer(config | {"group.id": "of-librdkafka", "auto.offset.reset": "earliest"})
        consumer.subscribe(["of-librdkafka"])
        print(consumer.poll().value().decode())
        consumer.close()
        """,
    "aiokafka": """
        import asyncio

        async def main():
            async with AIOKafkaProducer(**config) as producer:
                await producer.send_and_wait("of-aiokafka", b"hello")
            async with AIOKafkaConsumer("of-aiokafka", auto_offset_reset="earliest", **config) as consumer:
                print((await consumer.getone()).value.decode())

        asyncio.run(main())
        """,
    "kafka-python": """
        producer.send("of-kafka-python", b"hello").get()
        consumer = KafkaConsumer("of-kafka-python", auto_offset_reset="earliest", **config)
        print(next(consumer).value.decode())
        """,
}
"""What follows the lines."""
KAFKAJS: Final = """
    async function main () {
      const producer = kafka.producer()
      await producer.connect()
      await producer.send({ topic: "of-kafkajs", messages: [{ value: "hello" }] })
      await producer.disconnect()
      const consumer = kafka.consumer({ groupId: "readers" })
      await consumer.connect()
      await consumer.subscribe({ topic: "of-kafkajs", fromBeginning: true })
      await consumer.run({
        eachMessage: async ({ message }) => {
          console.log(message.value.toString())
          process.exit(0)
        }
      })
    }
    main()
    """
FRANZ_GO: Final = """\
package main

import (
    "context"
    "crypto/tls"
    "crypto/x509"
    "fmt"
    "os"

    "github.com/twmb/franz-go/pkg/kgo"
    "github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
LINES
    if err != nil {
        panic(err)
    }
    ctx := context.Background()
    record := &kgo.Record{Topic: "of-franz-go", Value: []byte("hello")}
    if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
        panic(err)
    }
    client.AddConsumeTopics("of-franz-go")
    fmt.Println(string(client.PollFetches(ctx).Records()[0].Value))
}
"""


class Printed:
    """The lines of a broker with the password in them."""

    def __init__(self, text: str) -> None:
        self._text = text

    def of(self, client: str) -> str:
        """Those below a client's title."""
        found = re.search(rf"^{client}\b.*:\n((?:  .*\n)+)", self._text, re.MULTILINE)
        assert found is not None, self._text
        return textwrap.dedent(found[1])


@contextlib.contextmanager
def served(data: Path) -> Iterator[None]:
    """A broker that has printed its lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "serve", "--secure", "--data-dir", str(data),
         "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line.startswith("PASSWORD is in") for line in process.stdout)
    yield
    process.send_signal(signal.SIGTERM)
    children.finish(process)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    data = tmp_path_factory.mktemp("data")
    with served(data):
        yield Printed((data / "secure" / "clients.txt").read_text())


def run(command: list[Any], folder: Path, **environment: str) -> str:
    """The output of a command in the folder of a project."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
    done = children.run(
        command, cwd=folder, env=environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("client", PYTHON)
def test_python(printed: Printed, tmp_path: Path, client: str) -> None:
    program = tmp_path / "main.py"
    program.write_text(printed.of(client) + textwrap.dedent(PYTHON[client]))
    assert run([sys.executable, program], tmp_path) == "hello\n"


def test_kafkajs(printed: Printed, tmp_path: Path) -> None:
    try:
        node, packages = find_node(), node_modules(COMPAT_TESTS / "kafkajs_client")
    except ToolchainMissing as missing:
        tool_missing(missing)
    (tmp_path / "node_modules").symlink_to(packages)
    program = tmp_path / "main.js"
    program.write_text(printed.of("kafkajs") + KAFKAJS)
    assert run([node, program], tmp_path, KAFKAJS_NO_PARTITIONER_WARNING="1").splitlines()[-1] == "hello"


def test_franz_go(printed: Printed, tmp_path: Path) -> None:
    try:
        go = find_go()
    except ToolchainMissing as missing:
        tool_missing(missing)
    for name in ("go.mod", "go.sum"):
        shutil.copy(COMPAT_TESTS / "security" / "clients" / "drivers" / "franz_go" / name, tmp_path)
    of_client = printed.of("Barnabas' commands").splitlines()[1]
    create = of_client.replace("topics list", "topics create of-franz-go")  # this client creates no topic by itself
    run([sys.executable, "-m", *shlex.split(create)], COMPAT_TESTS.parent)
    (tmp_path / "main.go").write_text(FRANZ_GO.replace("LINES", printed.of("franz-go")))
    assert run([go, "run", "."], tmp_path, **go_environment()) == "hello\n"


@pytest.mark.java
def test_java(printed: Printed) -> None:
    """The properties that the lines name, in Kafka's console tools."""
    options = ["--command-config", printed.of("Java").strip()]
    servers = re.search(r"^bootstrap.servers=(.*)$", Path(options[1]).read_text(), re.MULTILINE)
    assert servers is not None
    options += ["--bootstrap-server", servers[1], "--topic", "of-java"]
    tools = "org.apache.kafka.tools"
    sent = kafka_tool(f"{tools}.ConsoleProducer", options, stdin="hello\n")
    assert sent.returncode == 0, sent.stderr
    read = kafka_tool(f"{tools}.consumer.ConsoleConsumer", [*options, "--from-beginning", "--max-messages", "1"])
    assert read.stdout == "hello\n", read.stderr


def test_kcat(printed: Printed, tmp_path: Path) -> None:
    """The command, which lists topics, and then the same options with a record."""
    if shutil.which("kcat") is None:
        tool_missing("kcat is not installed (Debian: apt-get install kcat)")
    [command] = printed.of("kcat").splitlines()
    assert "1 brokers:" in run(shlex.split(command), tmp_path)
    record = tmp_path / "record"
    record.write_text("hello")
    base = shlex.split(command.removesuffix("-L"))
    run([*base, "-P", "-t", "of-kcat", str(record)], tmp_path)
    assert run([*base, "-C", "-t", "of-kcat", "-o", "beginning", "-c", "1", "-q"], tmp_path) == "hello\n"


def test_barnabas(printed: Printed, tmp_path: Path) -> None:
    """The commands of the administrator and of the client."""
    of_admin, of_client = printed.of("Barnabas' commands").splitlines()
    python = [sys.executable, "-m"]
    assert "client" in run([*python, *shlex.split(of_admin)], COMPAT_TESTS.parent)
    run([*python, *shlex.split(of_client)], COMPAT_TESTS.parent)


def test_a_token(printed: Printed, tmp_path: Path) -> None:
    """The properties of OAUTHBEARER, read from a file as kcat reads them."""
    (tmp_path / "properties").write_text(printed.of("OAUTHBEARER"))
    program = tmp_path / "main.py"
    program.write_text(
        "from confluent_kafka import Consumer, Producer\n"
        "config = dict(line.strip().split('=', 1) for line in open('properties'))\n"
        "producer = Producer(config)\n" + textwrap.dedent(PYTHON["librdkafka"].replace("of-librdkafka", "of-tokens"))
    )
    assert run([sys.executable, program], tmp_path) == "hello\n"


@pytest.mark.alone
def test_the_time_to_the_first_record(tmp_path: Path) -> None:
    """From a directory with nothing to a record that an authenticated client has sent: the goal is 3 s for the broker
    on a quiet machine; both times are printed."""
    taken: list[tuple[float, float]] = []

    def first_record_s() -> float:
        data = tmp_path / str(len(taken))
        began_s = time.perf_counter()
        with served(data):
            ready_s = time.perf_counter() - began_s
            producer = Producer(dict(parse_properties((data / "secure" / "librdkafka.properties").read_text())))
            producer.produce("first", b"hello")
            assert producer.flush(PATIENCE_S) == 0
            taken.append((ready_s, time.perf_counter() - began_s))
        return taken[-1][1]

    assert_within(300, process_s, first_record_s, "the first record")
    ready_s, record_s = min(taken, key=lambda each: each[1])
    print(f"ready and told after {ready_s:.2f} s, the first record is acknowledged after {record_s:.2f} s")
