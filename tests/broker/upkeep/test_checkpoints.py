"""When a broker writes its checkpoints: by its own clock, which the tests move."""

from pathlib import Path

import pytest

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.testing import Broker

RECORDS = 3
DELETED = 2


def fill(broker: Broker) -> None:
    """A topic with records, the first of which are deleted; all of it is flushed."""
    topic = broker.create_topic("t")
    for number in range(RECORDS):
        topic.produce(str(number))

    async def delete() -> None:
        partition = broker.server.replicas.partition_or_error("t", 0)
        broker.server.replicas.delete_records(partition, DELETED)

    broker.call(delete())
    broker.clock.advance(2_000)


@pytest.mark.parametrize(
    ("name", "interval_ms", "offset"),
    [
        (HIGH_WATERMARK_FILE, 5_000, RECORDS),
        (RECOVERY_POINT_FILE, 60_000, RECORDS),
        (LOG_START_FILE, 60_000, DELETED),
    ],
)
def test_checkpoints_are_written_by_their_intervals(name: str, interval_ms: int, offset: int, tmp_path: Path) -> None:
    line = f"t 0 {offset}\n"
    with Broker(data_dir=tmp_path) as broker:
        fill(broker)
        assert not (tmp_path / name).exists() or line not in (tmp_path / name).read_text()
        broker.clock.advance(interval_ms)
        assert line in (tmp_path / name).read_text()


def test_a_start_that_recovers_writes_recovery_points(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        fill(broker)
        broker.kill()
        broker.start()
        assert f"t 0 {RECORDS}\n" in (tmp_path / RECOVERY_POINT_FILE).read_text()
