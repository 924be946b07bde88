"""`barnabas transactions`, in this process against a broker on a thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.broker.cli.app import main
from barnabas.testing import Broker
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tools.waiting import PATIENCE_S

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # Without verification a producer that no coordinator knows can write: its transaction hangs.
    with Broker(transaction_partition_verification_enable=False) as running:
        yield running


@pytest.fixture
def run(broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command; (status, output, errors)."""
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main(["transactions", *arguments])
        sys.stdout.flush()
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def producer(broker: Broker) -> Producer:
    """A producer with a transaction under way in `open-0`."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "loader"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("open", b"value")
    assert producer.flush(PATIENCE_S) == 0
    return producer


def as_json(done: tuple[int, str, str]) -> Any:
    assert done[0] == 0, done
    return json.loads(done[1])


def test_list_and_describe(run: Run, producer: Producer) -> None:
    (listed,) = as_json(run("list", "--json"))
    assert (listed["transactional_id"], listed["state"]) == ("loader", "Ongoing")
    assert as_json(run("list", "--state", "Empty", "--json")) == []
    (described,) = as_json(run("describe", "loader", "--json"))
    assert described["partitions"] == [{"topic": "open", "partition": 0}]
    assert described["start_ms"] > 0
    assert described["producer_id"] == listed["producer_id"]
    producer.commit_transaction(PATIENCE_S)
    status, out, _ = run("list")
    assert status == 0
    assert "CompleteCommit" in out
    status, out, _ = run("describe", "loader")
    assert status == 0
    assert "60000" in out


def test_unknown_ids_and_states(run: Run) -> None:
    status, _, err = run("describe", "nobody")
    assert status == 1
    assert "TRANSACTIONAL_ID_NOT_FOUND" in err
    status, _, err = run("list", "--state", "Sleeping")
    assert status == 2
    assert "'Empty', 'Ongoing', 'PrepareCommit', 'PrepareAbort'" in err


def test_known_ids_are_described_beside_unknown_ones(run: Run, producer: Producer) -> None:
    status, out, err = run("describe", "nobody", "loader", "no one", "--json")
    assert status == 1
    assert [each["transactional_id"] for each in json.loads(out)] == ["loader"]
    assert [line for line in err.splitlines() if "TRANSACTIONAL_ID_NOT_FOUND" in line] == err.splitlines()
    assert len(err.splitlines()) == 2
    status, out, err = run("describe", "loader", "nobody")
    assert (status, "Ongoing" in out, "nobody" in err) == (1, True, True)
    producer.abort_transaction(PATIENCE_S)


def test_a_transaction_known_to_its_coordinator_does_not_hang(run: Run, broker: Broker, producer: Producer) -> None:
    assert run("find-hanging", "--max-timeout-ms", "0")[1] == "no transaction hangs\n"
    log = broker.server.log_manager.get("open", 0)
    offset = log.last_stable_offset
    arguments = ("abort", "--topic", "open", "--partition", "0", "--start-offset", str(offset))
    status, _, err = run(*arguments)
    assert status == 1
    assert "does not hang: it is that of transactional id loader (state Ongoing, timeout 60000 ms)" in err
    assert log.last_stable_offset == offset
    assert run(*arguments, "--force")[0] == 0
    assert log.last_stable_offset == offset + 2
    producer.abort_transaction(PATIENCE_S)


def test_a_transaction_that_hangs_is_found_and_aborted(run: Run, broker: Broker) -> None:
    broker.create_topic("hanging")
    broker.call(_produce(broker, "hanging", producer_id=777))
    assert as_json(run("find-hanging", "--json")) == [], "the last write is not long ago"
    (found,) = as_json(run("find-hanging", "--topic", "hanging", "--max-timeout-ms", "0", "--json"))
    assert (found["topic"], found["partition"], found["start_offset"]) == ("hanging", 0, 0)
    assert found["producer_id"] == 777
    assert "777" in run("find-hanging", "--max-timeout-ms", "0")[1]
    where = ("--topic", "hanging", "--partition", "0", "--start-offset")
    status, _, err = run("abort", *where, "5")
    assert (status, "no transaction of hanging-0 is open since offset 5" in err) == (1, True)
    assert run("abort", *where, "0")[0] == 0
    assert run("find-hanging", "--max-timeout-ms", "0")[1] == "no transaction hangs\n"


async def _produce(broker: Broker, topic: str, producer_id: int) -> None:
    """A transactional batch of a producer whom nobody knows, handed over as a client would."""
    from barnabas.broker.client.client import KafkaClient

    batch = build_batch(
        [Record(0, broker.server.clock.now_ms(), None, b"value")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
    request = ProduceRequest(transactional_id="nobody", acks=-1, timeout_ms=1000, topic_data=[data])
    async with KafkaClient(broker.bootstrap_servers) as client:
        response = await client.send(request, max_version=9)
        assert response.responses[0].partition_responses[0].error_code == 0
