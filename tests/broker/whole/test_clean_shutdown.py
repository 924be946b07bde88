"""The mark of a clean stop in a log directory, with the epoch of the broker that stopped (KIP-966)."""

import asyncio
import json
from pathlib import Path

import pytest

from barnabas.broker.configuration.config import load
from barnabas.broker.server import Broker
from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.jvm.shared import SharedJvm


def run_once(log_dir: Path, *, crash: bool = False) -> tuple[int, int]:
    """Start and stop a broker; its epoch, and the one that it found."""

    async def life() -> tuple[int, int]:
        broker = Broker(load(options={"log.dirs": str(log_dir), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        await broker.start()
        epoch = broker.controller.broker_epoch
        await (broker.crash() if crash else broker.stop())
        return epoch, broker.log_manager.previous_broker_epoch

    return asyncio.run(life())


def test_the_next_start_reads_the_epoch_of_a_clean_stop(tmp_path: Path) -> None:
    first, found = run_once(tmp_path)
    assert first > 0
    assert found == -1, "nobody was here before"
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_bytes()) == {"version": 0, "brokerEpoch": first}
    second, found = run_once(tmp_path, crash=True)
    assert second > first
    assert found == first
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    third, found = run_once(tmp_path)
    assert third > second
    assert found == -1, "the stop before was a crash"


@pytest.mark.java
@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_kafka_reads_the_epoch_and_we_read_kafkas(tmp_path: Path, version: str) -> None:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    epoch, _ = run_once(tmp_path)
    with SharedJvm(version) as jvm:
        handler = jvm.java.org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler(str(tmp_path))
        assert handler.read().getAsLong() == epoch
        handler.write(77)
    assert run_once(tmp_path)[1] == 77
