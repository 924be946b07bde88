"""A group rides out a broker that is killed again and again: static members see no rebalance, and no commit moves back
or runs ahead of what was read.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tools.processes.barnabas import BarnabasProcess
from tools.soak.commits import Place, fetch, moved_back
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]

TOPIC, GROUP = "numbers", "group"
MEMBERS = 3
SESSION_MS = round(PATIENCE_S * 1000)
"""No member is given up because the machine is busy."""


class Member(threading.Thread):
    """Reads its partitions, and leaves its commits to the client's own timer; `instance` makes it a static member."""

    def __init__(self, bootstrap_servers: str, instance: str | None) -> None:
        super().__init__(daemon=True)
        self.assignments: list[list[int]] = []
        self.positions: dict[int, int] = defaultdict(int)
        self.commits = 0
        self.committed: dict[Place, int] = defaultdict(int)
        self.ahead: list[str] = []
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP,
                **({"group.instance.id": instance} if instance else {}),
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 50,
                "session.timeout.ms": SESSION_MS,
                "max.poll.interval.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "on_commit": self._on_commit,
            }
        )
        self._consumer.subscribe([TOPIC], on_assign=self._on_assign)
        self.start()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments.append(sorted(each.partition for each in partitions))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called from `poll`, so everything that earlier polls returned is in `positions`."""
        for each in partitions if error is None else ():
            if each.offset < 0:  # nothing new
                continue
            if each.offset > self.positions[each.partition]:
                self.ahead.append(f"partition {each.partition}: {each.offset} > {self.positions[each.partition]}")
            self.committed[GROUP, each.partition] = max(self.committed[GROUP, each.partition], each.offset)
            self.commits += 1

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.positions[message.partition() or 0] = (message.offset() or 0) + 1
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)


class Load(threading.Thread):
    """Writes to all partitions until it is stopped."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0})
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.02):  # Real time: the pace of the records
            for partition in range(MEMBERS):
                self._producer.produce(TOPIC, b"x", partition=partition)
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)


@pytest.fixture
def process() -> Iterator[BarnabasProcess]:
    with BarnabasProcess({"group.initial.rebalance.delay.ms": "1500"}) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, num_partitions=MEMBERS)])[TOPIC].result()
        load = Load(process.bootstrap_servers)
        yield process
        load.stop()


@pytest.fixture
def join(process: BarnabasProcess) -> Iterator[Callable[..., Member]]:
    """Have one more member join."""
    members: list[Member] = []

    def join(instance: str | None) -> Member:
        members.append(Member(process.bootstrap_servers, instance))
        return members[-1]

    yield join
    for member in members:
        member.stop()


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.full)])
def test_static_members_see_no_rebalance_in_a_brokers_kill(
    process: BarnabasProcess, join: Callable[..., Member], kills: int
) -> None:
    members = [join(f"instance-{number}") for number in range(MEMBERS)]
    wait_until(lambda: each_has_one_partition(members), "a group that has settled")
    assignments = [list(member.assignments) for member in members]

    for _ in range(kills):
        wait_for_commits(members)
        acknowledged = {place: offset for member in members for place, offset in dict(member.committed).items()}
        process.kill()
        process.start()
        assert moved_back(acknowledged, committed(process, acknowledged)) == []
    wait_for_commits(members)  # each reads on

    assert [member.assignments for member in members] == assignments
    assert [member.ahead for member in members] == [[]] * MEMBERS


def test_a_returning_static_member_keeps_its_assignment(process: BarnabasProcess, join: Callable[..., Member]) -> None:
    members = [join(f"instance-{number}") for number in range(MEMBERS)]
    wait_until(lambda: each_has_one_partition(members), "a group that has settled")
    assignments = [list(member.assignments) for member in members]

    for number in range(MEMBERS):
        members[number].stop()
        members[number] = join(f"instance-{number}")
        wait_for_commits(members)
    assert [member.assignments[-1:] for member in members] == [each[-1:] for each in assignments]
    assert [len(member.assignments) for member in members] == [1] * MEMBERS


def test_without_an_instance_id_the_others_would_notice(process: BarnabasProcess, join: Callable[..., Member]) -> None:
    """The control: a rebalance that takes place is seen."""
    members = [join(None) for _ in range(MEMBERS)]
    wait_until(lambda: each_has_one_partition(members), "a group that has settled")
    counts = [len(member.assignments) for member in members]
    members[0].stop()
    wait_until(lambda: len(members[1].assignments) > counts[1], "a rebalance")


def each_has_one_partition(members: list[Member]) -> bool:
    """Not so while one that came first has all of them: another rebalance follows then."""
    latest = [member.assignments[-1] for member in members if member.assignments]
    return sorted(latest) == [[partition] for partition in range(MEMBERS)]


def wait_for_commits(members: list[Member]) -> None:
    """Until each member has committed something that it read from now on."""
    before = [member.commits for member in members]
    wait_until(lambda: all(m.commits > b + 1 for m, b in zip(members, before, strict=True)), "a commit of each member")


def committed(process: BarnabasProcess, places: dict[Place, int]) -> dict[Place, int]:
    """The committed offsets by a broker that has just started; it may have to load its groups first."""
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    found: dict[Place, int] = {}

    def is_told() -> bool:
        with suppress(KafkaException):
            found.update(fetch(consumer, GROUP, TOPIC, [partition for _, partition in places]))
        return len(found) == len(places)

    try:
        wait_until(is_told, "what is committed")
    finally:
        consumer.close()
    return found
