"""A broker that is as new again: nothing of before is left, nothing new is amiss, and clients stay connected."""

import asyncio
import itertools
import queue
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from barnabas.clock import ManualClock, SystemClock
from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.os_files import OsFiles
from barnabas.testing import Broker, Cluster, ErrorCode
from barnabas.testing.brokers import succession
from barnabas.testing.contents.requests import ask
from barnabas.testing.waiting.conditions import brokers_of
from barnabas.wire import codec
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from tests.support.bugs import Bug
from tests.support.files import RuledFiles
from tests.support.reference_loop import assert_within, timed, work_s
from tools.attack.hostile import connect, frame, receive
from tools.processes.barnabas import BarnabasZooKeeper
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


def seen(broker: Broker) -> dict[str, Any]:
    """A broker's state as clients see it, except for its address."""

    def told(request: Any, version: int) -> Any:
        return broker.call(ask(broker.server, request, version))

    def next_producer_id() -> int:
        """Asked for again while transactions are read that a client has brought about, as clients do."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        while (answer := told(request, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        return int(answer.producer_id)

    metadata = told(MetadataRequest(topics=None), 12)
    configs = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name=str(broker.server.node_id))]
    )
    described = told(configs, 4).results[0].configs
    listeners = ("listeners", "log.dir", "log.dirs", "barnabas.cluster.id")  # of no two brokers the same
    return {
        "topics": [topic.name for topic in metadata.topics if not topic.is_internal],
        "controller": metadata.controller_id,
        "brokers": [node.node_id for node in metadata.brokers],
        "groups": codec.encode(told(ListGroupsRequest(), 4), 4),
        "transactions": codec.encode(told(ListTransactionsRequest(), 1), 1),
        "configs": [(each.name, each.value, each.config_source) for each in described if each.name not in listeners],
        "producer id": next_producer_id(),
        "logs": [str(log) for log in broker.server.log_manager.logs],
        "hosted": [str(partition) for partition in broker.server.replicas.partitions()],
        "internal topics": [topic.name for topic in broker.server.metadata.topics() if topic.is_internal],
        "time": broker.clock.now_ms(),
        "faults": len(broker.faults),
    }


def consumer_of(broker: Broker, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # a late one would commit an offset of before a reset
            "heartbeat.interval.ms": 50,
            "topic.metadata.refresh.interval.ms": 100,
            "retry.backoff.ms": 1,
        }
    )


def change_everything(broker: Broker) -> tuple[Consumer, Producer]:
    """Use all there is: topics, a group with a member whose fetch is parked, an open transaction, producer ids,
    dynamic configs, faults, the clock."""
    topic = broker.create_topic("t", partitions=3, configs={"retention.ms": 1000})
    topic.produce("1")
    consumer = consumer_of(broker, "g")
    consumer.subscribe(["t"])
    message = None
    while message is None:
        message = consumer.poll(0.1)
    consumer.commit(message, asynchronous=False)
    broker.wait_group("g", members=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "2")
    producer.flush(PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("message.max.bytes", "1234", incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, str(broker.server.node_id), incremental_configs=[entry])]
    ).values():
        future.result(PATIENCE_S)
    broker.faults.delay("Produce", 1)
    broker.faults.drop("CreateTopics")
    broker.clock.advance(timedelta(minutes=1))
    return consumer, producer


def without_what_clients_bring_about(told: dict[str, Any]) -> dict[str, Any]:
    """All but what coordinators have made because somebody who was a member or a producer asks for it at once."""
    logs = {name: [each for each in told[name] if not each.startswith("__")] for name in ("logs", "hosted")}
    kept = {name: value for name, value in told.items() if name != "groups"}  # COORDINATOR_LOAD_IN_PROGRESS, say
    return kept | logs | {"internal topics": []}


@pytest.mark.parametrize("has_members", [False, True])
def test_a_reset_broker_equals_a_fresh_one(has_members: bool) -> None:
    now_ms = SystemClock().now_ms()
    configs = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}  # producers would, at once
    with (
        Broker(clock=ManualClock(now_ms), configs=configs) as broker,
        Broker(clock=ManualClock(now_ms), configs=configs) as fresh,
    ):
        address = broker.bootstrap_servers
        consumer, producer = change_everything(broker)
        changed = seen(broker)
        cluster_id = broker.server.cluster_id
        if not has_members:
            consumer.close()
            del producer
        broker.reset()
        as_new = seen(fresh)
        found = seen(broker)
        if has_members:
            assert without_what_clients_bring_about(found) == without_what_clients_bring_about(as_new)
        else:
            assert found == as_new
        differing = {name for name, value in changed.items() if value != as_new[name]}
        assert differing == set(as_new) - {"controller", "brokers"}
        assert broker.bootstrap_servers == address
        assert broker.server.cluster_id == cluster_id
        assert broker.clock.now_ms() == now_ms
        if has_members:
            consumer.close()
            del producer
        broker.kill()
        findings = check_directory(OsFiles(), broker.data_dir, deep=True).findings
        assert [each for each in findings if each.level is Level.ERROR] == []


def test_clients_stay_connected_and_go_on(broker: Broker) -> None:
    """A consumer whose fetch is parked, a producer, a transactional one, and a connection of the test's own: librdkafka
    may close one of its own meanwhile."""
    consumer, transactional = change_everything(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1})
    broker.faults.clear()
    producer.produce("t", "3")
    assert producer.flush(PATIENCE_S) == 0
    metadata = frame(MetadataRequest(topics=[]), 9)
    with broker.recorded() as recording, connect(broker.bootstrap_servers) as own:
        own.sendall(metadata)
        assert receive(own) is not None
        broker.reset()
        own.sendall(metadata)
        assert receive(own) is not None
        assert broker.group("g").state == "Dead"

        # The consumer finds the topic again when there is one of that name, and the group, too.
        broker.create_topic("t", partitions=3).produce("new")
        message = None  # what the consumer had fetched before comes first
        while message is None or message.error() or message.value() in (b"2", b"3"):
            message = consumer.poll(0.1)
        assert message.value() == b"new"
        producer.produce("t", "newer")
        assert producer.flush(PATIENCE_S) == 0
        assert {record.value for record in broker.topic("t").records()} == {b"new", b"newer"}
        broker.wait_group("g", members=1)
        with pytest.raises(KafkaException) as gone:
            transactional.commit_transaction(PATIENCE_S)
        assert gone.value.args[0].code() in (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._FENCED)
        assert recording.requests("JoinGroup", group="g")
    consumer.close()


def test_a_long_poll_is_answered(broker: Broker) -> None:
    """Nobody waits for a time-out: a fetch that is parked for a minute is told at once that nobody leads."""
    broker.create_topic("t")
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "fetch.wait.max.ms": 59_000}
        | {"socket.timeout.ms": 60_000, "auto.offset.reset": "earliest"}
    )
    with broker.recorded() as recording:
        consumer.subscribe(["t"])
        while not [each for each in recording.requests("Fetch") if each.outcome == "waiting"]:
            consumer.poll(0.05)
        [parked] = [each for each in recording.requests("Fetch") if each.outcome == "waiting"]
        broker.reset()
        assert parked.outcome == "NOT_LEADER_OR_FOLLOWER"
    consumer.close()


def test_a_reset_ends_waits_for_a_fault(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1})
    hold = broker.faults.hold("Produce")
    producer.produce("t", "1")
    producer.poll(0)
    hold.wait_held()
    broker.reset()
    assert len(broker.faults) == 0
    broker.create_topic("t")
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("partitions", [3, 50])
def test_a_reset_takes_milliseconds(partitions: int) -> None:
    """Some 10 ms, whatever the test before has used: a group's offsets and a transaction, each with an internal topic,
    here as small as by default, and as large as Kafka's."""
    internal = {"offsets.topic.num.partitions": partitions, "transaction.state.log.num.partitions": partitions}
    with Broker(configs=internal) as broker:
        use_all(broker)
        broker.reset()

        def reset_s() -> float:
            use_all(broker)
            return timed(broker.reset)()

        assert_within(6, work_s, reset_s, f"a reset, {partitions} partitions")


def use_all(broker: Broker) -> None:
    """Leave behind what tests leave: topics with records, a group's offsets, a transaction."""
    broker.create_topic("t", partitions=3).produce(b"x" * 1000)
    broker.create_topic("u", partitions=3)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("u", "1")
    producer.commit_transaction(PATIENCE_S)


@pytest.mark.parametrize("how", ["reset", "restore"])
def test_old_data_go_when_the_next_broker_is_there(how: str) -> None:
    """The thread that removes them would have its share of the processor, of the interpreter's lock and of the file
    system's."""
    removing: list[bool] = []

    def note(_: str) -> None:
        removing.append(any(thread.name == "barnabas-removal" for thread in threading.enumerate()))

    with Broker(files=RuledFiles(stat=note)) as broker:
        renew = new_data(broker, how)
        broker.create_topic("t", partitions=100)
        removing.clear()
        renew()
        assert removing
        assert not any(removing)


def test_a_reset_with_a_data_directory_is_refused(tmp_path: Any) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t").produce("1")
        with pytest.raises(RuntimeError, match="would exchange the data"):
            broker.reset()
        assert len(broker.topic("t").records()) == 1
    with pytest.raises(RuntimeError, match="does not run"):
        Broker().reset()


def test_a_reset_with_zookeeper_is_refused() -> None:
    """Topics in ZooKeeper would outlive a reset, and lose their records."""
    with BarnabasZooKeeper() as zookeeper, Broker(zookeeper_connect=zookeeper.address) as broker:
        broker.create_topic("t").produce("1")
        for action in (broker.reset, broker.snapshot):
            with pytest.raises(RuntimeError, match="cannot change what ZooKeeper stores"):
                action()
        assert len(broker.topic("t").records()) == 1


def test_nothing_is_left_behind() -> None:
    with Broker() as broker:
        directory = broker.data_dir
        broker.create_topic("t").produce("1")
        broker.reset()
        broker.reset()
        assert broker.data_dir == directory
        broker.restart()
        assert broker.topic_names() == []
    assert list(directory.parent.glob(directory.name + "*")) == []


# --- what is under way ----------------------------------------------------------------------------


def await_waiters(broker: Broker, count: int = 1) -> None:
    """Return when so many wait for something at the broker."""

    async def waiting() -> int:
        return sum(brokers_of(task) is not None for task in asyncio.all_tasks())

    wait_until(lambda: broker.call(waiting()) >= count)


def new_data(broker: Broker, how: str) -> Callable[[], None]:
    """How to have the broker's data exchanged for those of now, without anything in them."""
    return broker.reset if how == "reset" else partial(broker.restore, broker.snapshot())


def join(broker: Broker) -> None:
    broker.create_topic("t").produce("v")  # before: that it is unknown would come as a message, too
    consumer = consumer_of(broker, "g")
    consumer.subscribe(["t"])
    while consumer.poll(0.1) is None:
        pass
    consumer.close()


def list_groups(broker: Broker) -> None:
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(ListGroupsRequest(), 1))
        receive(connection)


WAITS: dict[str, tuple[Callable[[Broker], Any], Callable[[Broker], Any]]] = {
    "records": (
        lambda broker: broker.topic("t").wait_records(1),
        lambda broker: broker.create_topic("t").produce("v"),
    ),
    "records, awaited": (
        lambda broker: asyncio.run(broker.topic("t").wait_records_async(1)),
        lambda broker: broker.create_topic("t").produce("v"),
    ),
    "group": (lambda broker: broker.wait_group("g", members=1), join),
    "group, awaited": (lambda broker: asyncio.run(broker.wait_group_async("g", members=1)), join),
    "leader": (lambda broker: broker.leader("t"), lambda broker: broker.create_topic("t")),
    "request": (lambda broker: broker.wait_request("ListGroups"), list_groups),
    "request, awaited": (lambda broker: asyncio.run(broker.wait_request_async("ListGroups")), list_groups),
}


@pytest.mark.parametrize("how", ["reset", "restore"])
@pytest.mark.parametrize("what", WAITS)
def test_waits_see_records_after_a_reset(broker: Broker, what: str, how: str) -> None:
    exchange = new_data(broker, how)
    wait, bring_about = WAITS[what]
    with broker.recorded(), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, broker)
        await_waiters(broker)
        exchange()
        bring_about(broker)
        waiting.result(PATIENCE_S)


def test_waits_see_restored_state_at_once(broker: Broker) -> None:
    """A group that has gone, and records that were deleted before the snapshot was taken again."""
    topic = broker.create_topic("t")
    for _ in range(5):
        topic.produce("v")
    filled = broker.snapshot()
    topic.delete_records()
    with ThreadPoolExecutor(2) as pool:
        records = pool.submit(topic.wait_records, 5)
        await_waiters(broker)
        broker.restore(filled)
        assert len(records.result(PATIENCE_S)) == 5

        consumer = consumer_of(broker, "g")
        consumer.subscribe(["t"])
        while consumer.poll(0.1) is None:
            pass
        dead = pool.submit(broker.wait_group, "g", "Dead")
        await_waiters(broker)
        consumer.unsubscribe()
        broker.reset()
        assert dead.result(PATIENCE_S).state == "Dead"
        consumer.close()


def test_waits_leave_nothing_behind(broker: Broker) -> None:
    """Neither at the broker of before, nor at that of now."""
    servers = [broker.server]
    of_the_broker = len(servers[0].metadata.listeners)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(broker.topic("t").wait_records, 1), pool.submit(broker.wait_group, "g")]
        await_waiters(broker, 2)
        broker.reset()
        servers.append(broker.server)
        join(broker)
        for wait in waits:
            wait.result(PATIENCE_S)
    for server in servers:
        assert server.groups.runtime.listeners == set()
        assert len(server.metadata.listeners) == of_the_broker


@pytest.mark.parametrize(
    ("exchange", "told"),
    [
        (lambda broker: broker.reset(), "the broker was reset meanwhile"),
        (lambda broker: broker.snapshot(), "the broker was started anew for a snapshot meanwhile"),
        (lambda broker: broker.restore(broker.snapshot()), "the broker was started anew for a snapshot meanwhile"),
        (lambda broker: broker.restart(), "the broker was restarted meanwhile"),
    ],
    ids=["reset", "snapshot", "restore", "restart"],
)
def test_a_call_that_is_under_way_ends(exchange: Callable[[Broker], Any], told: str) -> None:
    """Its answer would be the former broker's. No time passes in which what was refused is tried again, when the fault
    has ended and the broker has not."""
    with Broker(clock=ManualClock()) as broker:
        full = broker.faults.disk_full()
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(broker.create_topic, "t")
            full.wait_hits()
            exchange(broker)
            with pytest.raises(RuntimeError, match=f"^{told}$"):
                creating.result(PATIENCE_S)
        broker.faults.clear()
        broker.create_topic("u").produce("v")


@pytest.mark.parametrize("how", ["reset", "restore", "restart"])
@pytest.mark.parametrize("new_owner", [Broker, partial(Cluster, 2)], ids=["broker", "cluster"])
def test_calls_beside_it_succeed_or_are_told_why_not(new_owner: Callable[[], Broker | Cluster], how: str) -> None:
    """The errors of a broker that ends are not passed on: that it is no controller, for example."""
    failed: list[str] = []
    done: queue.Queue[int] = queue.Queue()
    is_over = threading.Event()

    def create_topics(owner: Broker | Cluster) -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            try:
                owner.create_topic(f"t{number}")
            except RuntimeError as error:
                failed.append(str(error))
            else:
                done.put(number)

    with new_owner() as owner, ThreadPoolExecutor(1) as pool:
        exchange = partial(owner.restore, owner.snapshot()) if how == "restore" else getattr(owner, how)
        creating = pool.submit(create_topics, owner)
        try:
            for _ in range(25 if isinstance(owner, Broker) else 8):
                done.get(timeout=PATIENCE_S)
                exchange()
        finally:
            is_over.set()
        creating.result(PATIENCE_S)
    told = "this broker does not run.*|the .* (has stopped|(stopped|was reset|was restored|was restarted) meanwhile)"
    assert {error for error in failed if not re.fullmatch(told, error)} == set()


def test_a_call_of_a_coroutine_ends(broker: Broker) -> None:
    """The awaiting task is not cancelled."""
    begun = threading.Event()

    async def call() -> None:
        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        calling = asyncio.create_task(broker.call_async(forever()))
        await asyncio.to_thread(begun.wait)
        await asyncio.to_thread(broker.restore, snapshot)
        with pytest.raises(RuntimeError, match=r"^the broker was restored meanwhile$"):
            await calling

    snapshot = broker.snapshot()
    asyncio.run(call())


def test_calls_during_a_reset_go_to_the_next_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former one would read and write what is closed."""
    asking: list[asyncio.Task[Any]] = []

    async def asked() -> Any:
        return broker.server

    def ask_at_the_end(*_: Any) -> bool:
        asking.append(asyncio.create_task(broker.call_async(asked())))
        return False

    Bug(monkeypatch, succession, "end", ask_at_the_end)
    former = broker.server
    broker.reset()

    async def answer() -> Any:
        return await asking[0]

    assert broker.call(answer()) is broker.server is not former
