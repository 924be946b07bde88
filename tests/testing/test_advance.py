"""Moving a broker's time: what is due has happened when `advance` returns, and sockets do not notice."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.clock import ManualClock
from barnabas.testing import Broker

DAY = timedelta(days=1)


def consumer(broker: Broker, **configs: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **configs,
        }
    )


def test_records_and_topics_get_the_brokers_time(broker: Broker) -> None:
    before = broker.clock.now_ms()
    broker.clock.advance(DAY)
    assert broker.clock.now_ms() - before >= 86_400_000
    topic = broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    assert topic.produce("v").timestamp - before >= 86_400_000


def test_milliseconds_and_nothing_backwards(broker: Broker) -> None:
    before = broker.clock.monotonic_ms()
    broker.clock.advance(5_000)
    assert 5_000 <= broker.clock.monotonic_ms() - before < 60_000
    with pytest.raises(ValueError, match="cannot go back"):
        broker.clock.advance(timedelta(seconds=-1))


def test_retention(broker: Broker) -> None:
    topic = broker.create_topic("t", 1, {"retention.ms": 3_600_000})
    topic.produce("old")
    broker.clock.advance(timedelta(minutes=55))
    topic.produce("newer")
    assert len(topic.records()) == 2
    broker.clock.advance(timedelta(hours=2))
    assert topic.records() == []


def test_old_segments_go_and_the_active_one_stays_while_it_has_young_records() -> None:
    with Broker(log_roll_ms=60_000, log_retention_ms=3_600_000) as broker:
        topic = broker.create_topic("t")
        topic.produce("old")
        broker.clock.advance(timedelta(minutes=58))
        topic.produce("young")
        broker.clock.advance(timedelta(minutes=5))
        assert [record.value for record in topic.records()] == [b"young"]


def test_files_of_deleted_topics_go() -> None:
    with Broker() as broker:
        broker.create_topic("t").produce("v")
        broker.delete_topic("t")
        assert len(list(broker.data_dir.glob("t-0.*-delete"))) == 1
        broker.clock.advance(timedelta(minutes=2))
        assert list(broker.data_dir.glob("t-0*")) == []


def test_members_that_send_no_heartbeat_for_that_long_are_out(broker: Broker) -> None:
    broker.create_topic("t")
    member = consumer(broker, **{"session.timeout.ms": 45_000, "heartbeat.interval.ms": 40_000})
    member.subscribe(["t"])
    member.poll(0)
    broker.wait_group("g", members=1)
    broker.clock.advance(timedelta(seconds=44))
    assert len(broker.group("g").members) == 1
    broker.clock.advance(timedelta(seconds=2))
    assert (broker.group("g").state, broker.group("g").members) == ("Empty", ())
    member.close()


def test_offsets_expire_once_their_group_is_empty() -> None:
    with Broker(offsets_retention_minutes=60) as broker:
        broker.create_topic("t").produce("v")
        member = consumer(broker)
        member.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        member.close()
        assert broker.group("g").offsets == {("t", 0): 1}
        broker.clock.advance(timedelta(minutes=30))
        assert broker.group("g").offsets == {("t", 0): 1}
        broker.clock.advance(timedelta(minutes=31))
        assert broker.group("g").state == "Dead"


def test_producers_expire() -> None:
    with Broker(producer_id_expiration_ms=60_000, producer_id_expiration_check_interval_ms=1_000) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("t", b"v")
        assert producer.flush(10) == 0

        async def known() -> int:
            return len(broker.server.replicas.partition_or_error("t", 0).log.active_producers())

        assert broker.call(known()) == 1
        broker.clock.advance(timedelta(minutes=2))
        assert broker.call(known()) == 0


def test_connections_and_their_fetches_stay(broker: Broker) -> None:
    topic = broker.create_topic("t")
    reader = consumer(broker, **{"fetch.wait.max.ms": 2_000})
    reader.assign([TopicPartition("t", 0, 0)])
    reader.poll(0.5)

    async def connections() -> set[int]:
        return {connection.connection_id for connection in broker.server.connections}

    before = broker.call(connections())
    assert before
    broker.clock.advance(timedelta(days=2))  # connections.max.idle.ms is ten minutes
    assert broker.call(connections()) >= before
    topic.produce("v")
    found = reader.poll(20)
    assert found is not None
    assert found.value() == b"v"
    reader.close()


def test_many_threads_may_move_it() -> None:
    with Broker(clock=ManualClock(now_ms=0)) as broker, ThreadPoolExecutor(8) as pool:
        list(pool.map(broker.clock.advance, [1_000] * 64))
        assert broker.clock.now_ms() == 64_000


def test_the_time_stays_moved_over_restarts_and_moves_while_nothing_runs() -> None:
    broker = Broker(clock=ManualClock(now_ms=0))
    broker.clock.advance(1_000)
    with broker:
        topic = broker.create_topic("t", 1, {"retention.ms": 60_000})
        assert topic.produce("v").timestamp == 1_000
        broker.kill()
        broker.clock.advance(timedelta(minutes=5))
        broker.start()
        assert broker.clock.now_ms() == 301_000
        assert len(topic.records()) == 1  # retention looks every five minutes
        broker.clock.advance(timedelta(minutes=6))
        assert topic.records() == []


def test_a_manual_clock_stands_still() -> None:
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        assert {topic.produce("v").timestamp for _ in range(3)} == {1_700_000_000_000}
