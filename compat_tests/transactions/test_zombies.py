"""A producer that stands still while another takes over its transactional id: whatever it still sends is refused."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.wire.record_batch import iter_headers
from compat_tests.semantics.client import Connection, fetch_partition
from compat_tests.transactions.producer import committed_values
from compat_tests.transactions.zombie import RECORDS
from tools.waiting import PATIENCE_S

ZOMBIE = str(Path(__file__).with_name("zombie.py"))
FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.full)])
def test_a_producer_that_stood_still_is_fenced(
    cluster: Any, connection: Connection, topic: str, transactional_id: str, rounds: int
) -> None:
    choice = random.Random(rounds)
    read = 0
    for number in range(rounds):
        last = f"{choice.choice(['open', 'committed'])} {choice.randrange(4)}"
        value = f"successor {number}"
        said = stand_still_at(last, cluster.bootstrap_servers, transactional_id, topic, value)
        assert said[-1].removeprefix("refused ") in FENCED, said
        found = committed_values(connection, topic)[read:]
        read += len(found)
        # One more may have been committed without the producer hearing of it before it was stopped.
        committed = len([line for line in said if line.startswith("committed")])
        assert len(found) // RECORDS in (committed, committed + 1), said
        assert found == [
            *(f"zombie {each} {record}".encode() for each in range(len(found) // RECORDS) for record in range(RECORDS)),
            value.encode(),
        ]
    assert_epochs_never_fall(connection, topic)


def stand_still_at(last: str, bootstrap_servers: str, transactional_id: str, topic: str, value: str) -> list[str]:
    """Stop a producer when it has said `last`, let another one of its id commit a value, and let the first go on.

    Returns all that it said.
    """
    process = subprocess.Popen(
        [sys.executable, ZOMBIE, bootstrap_servers, transactional_id, topic], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == last:
                break
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        successor = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id})
        successor.init_transactions(PATIENCE_S)
        successor.begin_transaction()
        successor.produce(topic, value)
        successor.commit_transaction(PATIENCE_S)
        os.kill(process.pid, signal.SIGCONT)
        return [*said, *(line.strip() for line in process.stdout)]
    finally:
        process.kill()
        process.communicate()


def assert_epochs_never_fall(connection: Connection, topic: str) -> None:
    """No batch of an older epoch follows one of a newer epoch, committed or not."""
    epochs, offset = [], 0
    while buffer := bytes(fetch_partition(connection, topic, offset).records or b""):
        for header in iter_headers(buffer):
            epochs.append((header.producer_id, header.producer_epoch))
            offset = header.next_offset
    assert epochs == sorted(epochs)
