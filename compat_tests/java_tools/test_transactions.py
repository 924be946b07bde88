"""kafka-producer-perf-test in transactions, kafka-transactions, and console consumers of committed data."""

import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import ProduceRequest
from compat_tests.java_tools.kafka_tools import of_4_3_only
from compat_tests.semantics.client import Connection, batch_of, new_producer_id, produce_request, wait_until
from tools.waiting import PATIENCE_S

AS_DUMPED = ('"transactionTimeoutMs":60000', '"transactionStatus":1', '"transactionStatus":2')
AS_DUMPED_BY_3_9 = ("txnTimeoutMs=60000", "state=Ongoing", "state=PrepareCommit")


@pytest.fixture
def transactional_id() -> str:
    return f"java-txn-{secrets.token_hex(6)}"


@pytest.fixture
def open_transaction(cluster: Any, transactional_id: str, topic: str) -> Producer:
    """A producer that wrote one record and did not decide yet."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(PATIENCE_S) == 0
    return producer


def test_every_record_of_many_transactions_arrives(tools: Any, topic: str, transactional_id: str) -> None:
    count = 5000
    done = tools.run(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", count, "--record-size", 100, "--throughput", 10_000),
        *("--transactional-id", transactional_id, "--transaction-duration-ms", 50),
    )
    assert re.search(rf"^{count} records sent, ", done.out, re.MULTILINE), done.out + done.err
    consumed = tools.consume(topic, count, "--isolation-level", "read_committed", "--from-beginning")
    assert len(consumed) == count
    assert tools.offsets(topic)[0] > count, "every transaction leaves a marker"

    def described() -> dict[str, str]:
        done = tools.run("kafka-transactions", "describe", "--transactional-id", transactional_id)
        (row,) = tools.table(done)
        return dict(row)

    wait_until(lambda: described()["TransactionState"] == "CompleteCommit")  # noted after the markers, which are read
    row = described()
    if tools.of_3_9:  # its producer knows nothing of transaction version 2
        assert row["ProducerEpoch"] == "0"
    else:
        assert int(row["ProducerEpoch"]) > 5, "a producer of transaction version 2 gets a new epoch with every end"


def test_the_console_consumer_waits_for_the_commit(tools: Any, topic: str, open_transaction: Producer) -> None:
    assert tools.consume(topic, 1, "--isolation-level", "read_uncommitted", "--from-beginning") == ["open"]
    first = ("--topic", topic, "--from-beginning", "--max-messages", 1)
    done = tools.run("kafka-console-consumer", *first, "--timeout-ms", 3000, "--isolation-level", "read_committed")
    assert done.lines == []
    open_transaction.commit_transaction(PATIENCE_S)
    assert tools.consume(topic, 1, "--isolation-level", "read_committed", "--from-beginning") == ["open"]


@of_4_3_only
def test_list_of_ids_that_match(tools: Any, transactional_id: str, open_transaction: Producer) -> None:
    def listed(pattern: str) -> set[str]:
        rows = tools.table(tools.run("kafka-transactions", "list", "--transactional-id-pattern", pattern))
        return {row["TransactionalId"] for row in rows}

    assert listed(f"{transactional_id[:-3]}[0-9a-f]{{3}}") == {transactional_id}
    assert listed(transactional_id[:-3]) == set()
    refused = tools.run("kafka-transactions", "list", "--transactional-id-pattern", "(", status=1)
    assert "`ListTransactions` request sent to broker 1 failed" in refused.err, "it knows no words for this error"
    open_transaction.abort_transaction(PATIENCE_S)


def test_list_and_describe(tools: Any, topic: str, transactional_id: str, open_transaction: Producer) -> None:
    rows = {row["TransactionalId"]: row for row in tools.table(tools.run("kafka-transactions", "list"))}
    assert rows[transactional_id]["TransactionState"] == "Ongoing"
    (described,) = tools.table(tools.run("kafka-transactions", "describe", "--transactional-id", transactional_id))
    assert described["TopicPartitions"] == f"{topic}-0"
    assert described["TransactionTimeoutMs"] == "60000"
    open_transaction.abort_transaction(PATIENCE_S)


def test_a_transaction_that_hangs_is_found_and_aborted(
    start_cluster: Callable[..., Any], tools_for: Callable[[Any], Any]
) -> None:
    own = start_cluster({"transaction.partition.verification.enable": "false"})
    tools = tools_for(own)
    tools.run("kafka-topics", "--create", "--topic", "t", "--partitions", 1)
    connection = Connection(own.bootstrap_servers)
    producer_id = new_producer_id(connection)
    batch = batch_of([b"hangs"], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    request: ProduceRequest = produce_request("t", batch)
    request.transactional_id = "nobody"
    wait_until(lambda: connection.ask(request, 9).responses[0].partition_responses[0].error_code == 0)
    found = tools.run("kafka-transactions", "find-hanging", "--topic", "t", "--max-transaction-timeout", 0)
    (row,) = [row for row in tools.table(found) if row.get("ProducerId") == str(producer_id)]
    assert (row["Topic"], row["Partition"], row["StartOffset"]) == ("t", "0", "0")
    tools.run("kafka-transactions", "abort", "--topic", "t", "--partition", 0, "--start-offset", 0)
    done = tools.run(
        "kafka-console-consumer",
        *("--topic", "t", "--from-beginning", "--timeout-ms", 3000, "--isolation-level", "read_committed"),
    )
    assert done.lines == []
    connection.close()


@of_4_3_only
def test_force_terminate_fences_the_producer(
    tools: Any, cluster: Any, transactional_id: str, open_transaction: Producer
) -> None:
    tools.run("kafka-transactions", "forceTerminateTransaction", "--transactionalId", transactional_id)
    with Connection(cluster.bootstrap_servers) as connection:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        wait_until(lambda: connection.ask(request, 4).error_code == 0)
    (row,) = tools.table(tools.run("kafka-transactions", "describe", "--transactional-id", transactional_id))
    assert row["TransactionState"] == "Empty"


def test_the_log_of_transactions_is_kafkas(
    tools: Any, cluster: Any, transactional_id: str, open_transaction: Producer
) -> None:
    open_transaction.commit_transaction(PATIENCE_S)
    decoded = []
    for log in sorted(cluster.log_dir.glob("__transaction_state-*/*.log")):
        if log.stat().st_size:
            done = tools.run("kafka-dump-log", "--transaction-log-decoder", "--print-data-log", "--files", log)
            decoded += [line for line in done.lines if transactional_id in line]
    assert decoded
    assert "isvalid: false" not in "".join(decoded)
    for field in AS_DUMPED_BY_3_9 if tools.of_3_9 else AS_DUMPED:
        assert any(field in line.replace(" ", "") for line in decoded), (field, decoded)
