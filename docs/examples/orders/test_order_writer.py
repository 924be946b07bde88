"""Names of topics and groups are fixed in the application: its broker is reset after each test (see pytest.ini)."""

import json
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from order_writer import DEAD_LETTERS, GROUP, TOPIC, OrderWriter


@pytest.fixture
def orders(kafka_broker):
    return kafka_broker.create_topic(TOPIC)


@pytest.fixture
def start(kafka_broker, tmp_path):
    """Starts the application, on the same database each time."""
    writers = []

    def start(**settings):
        quick = {"fetch.wait.max.ms": 20, "fetch.error.backoff.ms": 10, "heartbeat.interval.ms": 50}
        quick |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}
        writer = OrderWriter(kafka_broker.bootstrap_servers, str(tmp_path / "orders.sqlite"), **quick | settings)
        writers.append(writer)
        return writer

    yield start
    for writer in writers:
        writer.close()


def order(customer="Ada", cents=100):
    return json.dumps({"customer": customer, "cents": cents})


def take_in(writer, count):
    taken = 0
    for _ in range(300):
        if taken == count:
            return
        taken += writer.step(0.1)
    pytest.fail(f"{taken} records came, not {count}")


def written(writer):
    return writer.database.execute("select id, customer, cents from orders order by id").fetchall()


# --- what is written --------------------------------------------------------------------------------


def test_an_order_is_written(orders, start):
    orders.produce(order("Ada", 1250), key="1")
    writer = start()
    take_in(writer, 1)
    assert written(writer) == [("1", "Ada", 1250)]


def test_orders_of_all_partitions_are_written(orders, start):
    for number in range(10):
        orders.produce(order(cents=number), key=str(number))
    assert {record.partition for record in orders.records()} == {0, 1}
    writer = start()
    take_in(writer, 10)
    assert written(writer) == [(str(number), "Ada", number) for number in range(10)]


def test_the_latest_state_of_an_order_holds(orders, start):
    orders.produce(order(cents=1), key="1")
    orders.produce(order(cents=2), key="1")
    writer = start()
    take_in(writer, 2)
    assert written(writer) == [("1", "Ada", 2)]


def test_an_order_is_cancelled(orders, start):
    orders.produce(order(), key="1")
    orders.produce(None, key="1")
    writer = start()
    take_in(writer, 2)
    assert written(writer) == []


def test_what_comes_later_is_written_too(orders, start):
    writer = start()
    orders.produce(order(cents=1), key="1")
    take_in(writer, 1)
    orders.produce(order(cents=2), key="2")
    take_in(writer, 1)
    assert written(writer) == [("1", "Ada", 1), ("2", "Ada", 2)]


def test_orders_of_a_transaction_that_was_aborted_are_not_written(kafka_broker, orders, start):
    shop = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": "shop"})
    shop.init_transactions()
    shop.begin_transaction()
    shop.produce(TOPIC, order(), "aborted")
    shop.flush()
    shop.abort_transaction()
    shop.begin_transaction()
    shop.produce(TOPIC, order(), "committed")
    shop.commit_transaction()
    writer = start()
    take_in(writer, 1)
    assert written(writer) == [("committed", "Ada", 100)]


# --- what is no order -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", b"JSONDecodeError"),
        ('{"customer": "Ada"}', b"KeyError: 'cents'"),
        (order(cents=-1), b"-1 is no amount"),
        (b'{"customer": "\xff"}', b"UnicodeDecodeError"),
    ],
    ids=["no JSON", "no amount", "negative amount", "no text"],
)
def test_what_is_no_order_is_set_aside(kafka_broker, orders, start, value, reason):
    orders.produce(value, key="1", partition=0)
    orders.produce(order(), key="2", partition=0)
    writer = start()
    take_in(writer, 2)
    assert written(writer) == [("2", "Ada", 100)]
    [dead] = kafka_broker.topic(DEAD_LETTERS).wait_records(1)
    headers = dict(dead.headers)
    assert headers["reason"].startswith(reason)
    assert headers["where"] == b"orders-0@0"


def test_an_order_needs_a_number(kafka_broker, orders, start):
    orders.produce(order())
    writer = start()
    take_in(writer, 1)
    [dead] = kafka_broker.topic(DEAD_LETTERS).wait_records(1)
    assert dict(dead.headers)["reason"] == b"no key"


def test_what_cannot_be_set_aside_yet_is_not_passed_by(kafka_broker, orders, start):
    dead = kafka_broker.create_topic(DEAD_LETTERS)
    kafka_broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=DEAD_LETTERS, times=2)
    orders.produce("no order", key="1")
    writer = start()
    take_in(writer, 1)
    assert len(dead.records()) == 1


# --- where it goes on -------------------------------------------------------------------------------


def test_it_goes_on_where_it_was(orders, start):
    orders.produce(order(), key="1")
    writer = start()
    take_in(writer, 1)
    writer.consumer.close()
    orders.produce(order(), key="2")
    again = start()
    take_in(again, 1)
    assert len(written(again)) == 2


def test_its_progress_can_be_watched(kafka_broker, orders, start):
    orders.produce(order(), key="1", partition=0)
    writer = start()
    take_in(writer, 1)
    with kafka_broker.recorded() as seen:
        writer.consumer.close()
    assert kafka_broker.group(GROUP).offsets == {(TOPIC, 0): 1}, seen.chart()


def test_it_needs_no_committed_offsets(kafka_broker, orders, start):
    orders.produce(order(), key="1")
    writer = start()
    take_in(writer, 1)
    writer.consumer.close()
    kafka_broker.faults.lose_offsets(GROUP, TOPIC)
    orders.produce(order(), key="2")
    again = start()
    take_in(again, 1)  # and not both
    assert len(written(again)) == 2


def test_retention_was_faster(kafka_broker, start):
    orders = kafka_broker.create_topic(TOPIC, partitions=1, configs={"retention.ms": 3_600_000})
    orders.produce(order(), key="read")
    writer = start()
    take_in(writer, 1)
    writer.consumer.close()
    orders.produce(order(), key="missed")
    kafka_broker.clock.advance(timedelta(hours=2))
    orders.produce(order(), key="there")
    again = start()
    take_in(again, 1)
    assert [number for number, *_ in written(again)] == ["read", "there"]


# --- what the broker does meanwhile -----------------------------------------------------------------


def test_the_broker_is_restarted(kafka_broker, orders, start):
    writer = start()
    orders.produce(order(), key="1")
    take_in(writer, 1)
    kafka_broker.restart()
    orders.produce(order(), key="2")
    take_in(writer, 1)
    assert len(written(writer)) == 2


def test_the_leader_is_away_for_a_while(kafka_broker, orders, start):
    orders.produce(order(), key="1")
    fault = kafka_broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=TOPIC, times=2)
    writer = start()
    take_in(writer, 1)
    assert fault.hits == 2


def test_a_rebalance_between_two_orders_doubles_nothing(kafka_broker, orders, start):
    orders.produce(order(), key="1", partition=0)
    orders.produce(order(), key="2", partition=0)
    writer = start()
    take_in(writer, 1)
    kafka_broker.faults.expire_member(GROUP)
    taken = 0
    while kafka_broker.group(GROUP).state != "Stable":
        taken += writer.step(0.1)
    take_in(writer, 1 - taken)
    assert len(written(writer)) == 2
    assert not writer.step(0.1)


def test_two_of_them_share_the_partitions(kafka_broker, orders, start):
    writers = [start(), start()]
    for number in range(10):
        orders.produce(order(), key=str(number))
    while len(written(writers[0])) < 10 or not all(len(each.consumer.assignment()) == 1 for each in writers):
        for writer in writers:
            writer.step(0.05)
    assert len(kafka_broker.group(GROUP).members) == 2
