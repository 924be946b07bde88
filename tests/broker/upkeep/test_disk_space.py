"""Reports of log directories without room: to clients, on /readyz and on /metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator

import pytest

from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing import ApiError, Broker
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from tools.waiting import PATIENCE_S, wait_until

GIB = 1 << 30


class Disk(UnsyncedFiles):
    """A disk of 10 GiB that says how much is free."""

    free = 5 * GIB

    def total_bytes(self, path: str) -> int:
        return 10 * GIB

    def free_bytes(self, path: str) -> int:
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def broker(disk: Disk) -> Iterator[Broker]:
    with Broker(files=disk, barnabas_http_address="127.0.0.1:0") as running:
        yield running


def get(broker: Broker, page: str) -> str:
    http = broker.server._http
    assert http is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{http.port}{page}", timeout=PATIENCE_S) as answer:
        assert answer.status == 200
        text: str = answer.read().decode()
        return text


def told(broker: Broker) -> Callable[[], str | None]:
    return broker.server.disk_space.complaint


def test_a_full_directory_is_named_until_it_has_room_again(broker: Broker, disk: Disk) -> None:
    topic = broker.create_topic("t")
    wait_until(lambda: broker.server.disk_space.free_bytes, "a look at the disk")
    directory = str(broker.data_dir)
    assert get(broker, "/readyz") == "ready\n"
    assert f'barnabas_log_directory_free_bytes{{directory="{directory}"}} 5.36870912e+09' in get(broker, "/metrics")
    assert f'barnabas_log_directory_full{{directory="{directory}"}} 0.0' in get(broker, "/metrics")

    disk.free = 1000
    wait_until(told(broker), "a full disk")
    assert get(broker, "/readyz") == f"ready, but {directory} is full, records of clients are refused\n"
    assert f'barnabas_log_directory_free_bytes{{directory="{directory}"}} 1000.0' in get(broker, "/metrics")
    assert f'barnabas_log_directory_full{{directory="{directory}"}} 1.0' in get(broker, "/metrics")
    with pytest.raises(ApiError, match=r"The disk of t-0 at broker 1 is full\."):
        topic.produce("v")

    disk.free = GIB
    wait_until(lambda: told(broker)() is None, "room")
    assert get(broker, "/readyz") == "ready\n"
    assert topic.produce("v").offset == 0


def test_without_a_reserve_no_record_is_refused(disk: Disk) -> None:
    """The free bytes are reported all the same."""
    with Broker(files=disk, barnabas_disk_reserve_bytes=0) as broker:
        disk.free = 7
        wait_until(lambda: list(broker.server.disk_space.free_bytes.values()) == [7], "a look at the disk")
        assert told(broker)() is None
        assert broker.create_topic("t").produce("v").offset == 0


def test_a_failed_write_reports_the_full_disk(broker: Broker) -> None:
    topic = broker.create_topic("t")
    with broker.faults.disk_full(), pytest.raises(ApiError, match=r"The disk of t-0 at broker 1 is full\.") as refused:
        topic.produce("v")
    assert refused.value.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert topic.produce("v").offset == 0


def test_a_topic_without_room_is_refused_with_the_reason(broker: Broker, disk: Disk) -> None:
    disk.free = 1000
    wait_until(told(broker), "a full disk")
    complaint = f"{broker.data_dir} is full, records of clients are refused"
    with broker.faults.disk_full():
        creation = CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=100
        )
        [result] = broker.call(ask(broker.server, creation, 7)).topics
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert result.error_message.endswith(f" {complaint}.")
        [found] = broker.call(ask(broker.server, FindCoordinatorRequest(coordinator_keys=["g"]), 4)).coordinators
        assert (found.error_code, found.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, complaint)
