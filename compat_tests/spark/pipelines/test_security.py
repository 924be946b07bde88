"""Spark's clients and the pipelines on a broker with TLS and users: what Barnabas' commands take, they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.spark_examples import archive, archive_audit, dedupe, pipeline, stream_wordcount
from barnabas.testing import Broker
from compat_tests.conftest import ROOT
from compat_tests.spark.pipelines.conftest import options_for
from tools.processes import children
from tools.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(security="sasl_ssl") as broker:
        yield broker


@pytest.fixture
def config(secured: Broker, tmp_path: Path) -> str:
    """The file of Kafka's client properties of a user."""
    path = tmp_path / "alice.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in secured.client_config("alice", "java").items()))
    return str(path)


def produce(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer(broker.client_config("alice"))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def run_once(spark: Any, module: Any, servers: str, *arguments: str) -> dict[str, Any]:
    options = options_for(module, servers, "--once", *arguments)
    queries = module.start(spark, options)
    return {**options.totals, **pipeline.follow(queries, options.stop)}


def test_a_batch_and_a_stream(spark: Any, secured: Broker, config: str, tmp_path: Path) -> None:
    """Over SASL_SSL with SCRAM: the stream of a pipeline reads and writes, and a batch reads that."""
    secured.create_topic("lines", 2)
    secured.create_topic("words")
    produce(secured, "lines", "one two", "two")
    arguments = [f"--command-config={config}", f"--checkpoint={tmp_path / 'checkpoint'}"]

    run_once(spark, stream_wordcount, secured.bootstrap_servers, *arguments)

    options = options_for(stream_wordcount, secured.bootstrap_servers, *arguments)
    rows = pipeline.read_topic(spark, options, "words").selectExpr("cast(key as string)", "cast(value as string)")
    counts = {row.key: row.value for row in rows.collect()}
    assert counts.keys() == {"one", "two"}


@pytest.mark.full
def test_a_pipeline_that_writes_transactions(spark: Any, secured: Broker, config: str, tmp_path: Path) -> None:
    """Its tasks log in by librdkafka."""
    secured.create_topic("events", 2)
    secured.create_topic("unique-events", 2)
    produce(secured, "events", '{"id": 1}', '{"id": 1}', '{"id": 2}')

    run_once(
        spark,
        dedupe,
        secured.bootstrap_servers,
        f"--command-config={config}",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--id-field=id",
    )

    values = [json.loads(record.value or b"") for record in secured.topic("unique-events").records()]
    assert sorted(value["id"] for value in values) == [1, 2]


@pytest.mark.full
def test_an_audit_asks_a_secured_queue(spark: Any, secured: Broker, config: str, tmp_path: Path) -> None:
    """An aborted transaction leaves offsets that only the queue explains."""
    secured.create_topic("orders")
    producer = Producer({**secured.client_config("alice"), "transactional.id": "t"})
    producer.init_transactions()
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        producer.produce("orders", outcome)
        getattr(producer, f"{outcome}_transaction")()
    arguments = [f"--command-config={config}", f"--archive={tmp_path / 'archive'}", "--topics=orders"]

    run_once(spark, archive, secured.bootstrap_servers, "run", *arguments)
    [finding] = archive_audit.audit(spark, options_for(archive, secured.bootstrap_servers, "audit", *arguments))

    assert finding.is_complete
    assert finding.rows == 2


@pytest.mark.full
def test_the_printed_lines_are_pasted(spark: Any, tmp_path: Path) -> None:
    """What `barnabas serve --secure` prints for Spark runs unedited."""
    from barnabas.broker.cli.secure_clients import Account, instructions

    with Broker(security="sasl_ssl", data_dir=tmp_path / "data") as broker:
        broker.create_topic("orders").produce("hello")
        account = broker._account("client")
        assert isinstance(account, Account)
        names: dict[str, Any] = {"spark": spark}
        exec(spark_lines(instructions(account, str(tmp_path / "data" / "secure"), None)), names)
        read, write = names["records"], names["settings"]
        assert [bytes(row.value) for row in read.where("topic = 'orders'").select("value").collect()] == [b"hello"]
        query = (
            spark.readStream.format("kafka")
            .options(**write)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("kafka")
            .options(**write)
            .option("topic", "copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        assert [record.value for record in broker.topic("copies").records()] == [b"hello"]


def spark_lines(text: str) -> str:
    """The lines of Spark, which are the last ones without an issuer of tokens."""
    return text.partition("Spark (Python):\n")[2]


def ended(*arguments: str, status: int, **environment: str) -> list[str]:
    """The output of a pipeline that ends before Spark is started."""
    command = [sys.executable, "-m", "barnabas.spark_examples.stream_wordcount", "--checkpoint=c", *arguments]
    without_java = {**os.environ, "JAVA_HOME": "/nowhere", **environment}
    done = children.run(
        command, cwd=ROOT, env=without_java, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_a_wrong_password_is_one_line(secured: Broker) -> None:
    ca = secured.client_config("alice", "java")["ssl.truststore.location"]
    [line] = ended(
        f"--bootstrap-servers={secured.bootstrap_servers}", "--user=alice", f"--ca={ca}", status=1,
        BARNABAS_PASSWORD="wrong",
    )  # fmt: skip
    assert line.startswith(f"the broker at {secured.bootstrap_servers} does not accept user alice with this password")
    assert "wrong" not in line


@pytest.mark.full
def test_an_authority_that_is_not_trusted_is_one_line(secured: Broker) -> None:
    [line] = ended(f"--bootstrap-servers={secured.bootstrap_servers}", "--user=alice", "--password=x", status=1)
    assert "certificate" in line


def test_the_file_names_the_servers(config: str, secured: Broker) -> None:
    """And its user sees that the topic is missing."""
    secured.client_config("alice")
    [line] = ended(f"--command-config={config}", "--input-topic=nothing", status=1)
    assert line.startswith(f"{secured.bootstrap_servers} has no topic nothing. ")
    assert line.endswith(f"--command-config {config}")


def parsed(*arguments: str) -> Any:
    return stream_wordcount.parser().parse_args(list(arguments))


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def refuse(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            parsed(*arguments)
        assert end.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        return str(line)

    return refuse


def test_options_that_cannot_be_are_one_line(refusal: Callable[..., str], tmp_path: Path) -> None:
    assert "needs --bootstrap-servers" in refusal("--user=alice", "--password=x")
    assert "cannot be read" in refusal("--bootstrap-servers=a:1", "--command-config=/nowhere")
    assert "/nowhere" in refusal("--bootstrap-servers=a:1", "--ca=/nowhere")


def test_without_options_nothing_is_set() -> None:
    options = parsed("--bootstrap-servers=a:1", "--kafka=a=b")
    assert (options.kafka, options.client) == ([("a", "b")], [])


def test_what_is_given_one_by_one_counts(config: str) -> None:
    """--kafka and --client come after what the file says."""
    options = parsed("--bootstrap-servers=a:1", f"--command-config={config}", "--kafka=sasl.mechanism=PLAIN")
    assert pipeline.kafka_options(options)["kafka.sasl.mechanism"] == "PLAIN"
    assert pipeline.kafka_options(options)["kafka.bootstrap.servers"] == "a:1"
    assert pipeline.client_options(options)["sasl.username"] == "alice"


def test_a_broker_of_its_own_needs_no_variables(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """Without servers, the file of the environment does not count: the pipeline shows its sample."""
    monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", config)
    options = parsed()
    assert options.bootstrap_servers is None
    assert (options.kafka, options.client) == ([], [])
    assert parsed("--bootstrap-servers=a:1").client != []
