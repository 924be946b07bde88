"""What a failing assertion, and a failing test, tell of the broker."""

import logging
import re
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.testing import Broker, Cluster, Topic, report

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error", "--strict-markers")


def explanation(error: pytest.ExceptionInfo[BaseException]) -> list[str]:
    return str(error.value).splitlines()


def use(broker: Broker) -> Topic:
    """Something of everything that is told of."""
    topic = broker.create_topic("orders", partitions=2)
    for number in range(7):
        topic.produce(f"order {number}", key="k", partition=1)
    topic.produce(b"x" * 1000, partition=0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 1, 5)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "shop"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", "not committed", partition=1)
    assert producer.flush(30) == 0
    return topic


def test_records_that_do_not_come(broker: Broker) -> None:
    fault = broker.faults.delay("Produce", 1)
    with broker.recorded():
        topic = use(broker)
        with pytest.raises(TimeoutError, match=r"after 0\.05 s topic orders holds 8 records, not 9") as error:
            topic.wait_records(9, timeout=0.05)
    lines = explanation(error)
    assert "  ... 3 before these" in lines
    assert "  orders-1 offset 6: key b'k', value b'order 6'" in lines
    assert "  orders-0 has the offsets from 0 to before 1" in lines
    assert "  orders-1 has the offsets from 0 to before 8, of which 7 on are not committed" in lines
    assert "  billing is Empty with 0 members; committed: orders-1: 5" in lines
    assert "  shop is Ongoing, producer 0 epoch 0, partitions: orders-1" in lines
    assert fault.hits == 1
    assert "  <delay Produce, 1 hits>" in lines
    asked = lines[lines.index("last requests:") + 1 : lines.index("last requests:") + 11]
    assert any("<Produce v" in line and "orders-1" in line and line.endswith("-> ok") for line in asked)


def test_long_values_are_cut(broker: Broker) -> None:
    topic = broker.create_topic("t")
    topic.produce(b"x" * 1000)
    with pytest.raises(TimeoutError) as error:
        topic.wait_records(2, timeout=0.05)
    assert f"  t-0 offset 0: key None, value {b'x' * 80!r}... (1000 bytes)" in explanation(error)


def test_nothing_there(broker: Broker) -> None:
    with pytest.raises(TimeoutError) as error:
        broker.topic("t").wait_records(1, timeout=0.05)
    lines = explanation(error)
    for title in ("topics", "groups", "transactions", "faults"):
        assert f"{title}: none" in lines
    assert lines[lines.index("last requests:") + 1].startswith("  not recorded")


def test_many_topics_are_cut_short(broker: Broker) -> None:
    broker.create_topic("many", partitions=report.ENTRIES_MAX + 5)
    with pytest.raises(TimeoutError) as error:
        broker.topic("t").wait_records(1, timeout=0.05)
    assert "  ... and 5 more" in explanation(error)


def test_the_log_is_told(broker: Broker) -> None:
    logging.getLogger("barnabas.test").warning("the disk is on fire")
    with pytest.raises(TimeoutError) as error:
        broker.wait_group("g", timeout=0.05)
    assert any(line.endswith("WARNING barnabas.test: the disk is on fire") for line in explanation(error))


def test_other_things_that_are_waited_for(broker: Broker) -> None:
    use(broker)
    topics = "  orders-0 has the offsets from 0 to before 1"
    with pytest.raises(TimeoutError, match="group g is Dead") as error:
        broker.wait_group("g", timeout=0.05)
    assert topics in explanation(error)
    with broker.faults.hold("Produce") as hold, pytest.raises(TimeoutError, match="0 requests are held") as error:
        hold.wait_held(timeout=0.05)
    assert topics in explanation(error)
    with broker.recorded() as seen, pytest.raises(TimeoutError, match="there were not 1 such") as error:
        seen.wait_request("Produce", timeout=0.05)
    assert topics in explanation(error)


def test_a_cluster() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic("t")
        with pytest.raises(TimeoutError, match="no broker leads u-0") as error:
            cluster.leader("u", timeout=0.1)
        assert "  t-0 has the offsets from 0 to before 0" in explanation(error)


def test_warnings_are_printed_as_without_us() -> None:
    """A program that has not set up logging sees warnings once, as Python prints them by itself."""
    program = """
import logging
from barnabas.testing import Broker
with Broker():
    logging.getLogger("barnabas.test").warning("the disk is on fire")
    logging.getLogger("barnabas.test").info("no news")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "the disk is on fire\n"


# --- the report of a failing test -----------------------------------------------------------------


def test_a_failing_test_that_used_a_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        from barnabas.testing import Broker

        def test_session(kafka_broker):
            kafka_broker.create_topic("of-session").produce("1")
            assert False

        def test_factory(kafka_broker_factory):
            kafka_broker_factory().create_topic("of-factory")
            assert False

        def test_block():
            with Broker() as broker:
                broker.create_topic("of-block")
                assert False

        def test_block_that_passes():
            with pytest.raises(ZeroDivisionError), Broker() as broker:
                broker.create_topic("of-no-report")
                1 / 0

        def test_none():
            assert False

        def test_passes(kafka_broker):
            kafka_broker.create_topic("of-one-that-passes")
    """)
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=4, passed=2)
    text = result.stdout.str()
    pieces = re.split(r"\n_+ (test_\w+) _+\n", text.partition("short test summary")[0])[1:]
    parts = dict(zip(pieces[::2], pieces[1::2], strict=True))
    assert "Broker 127" not in parts.pop("test_none")
    assert set(parts) == {"test_session", "test_factory", "test_block"}
    for name, part in parts.items():
        assert part.count("- Broker 127.0.0.1:") == 1
        assert f"  of-{name.removeprefix('test_')}-0 has the offsets from 0 to before" in part
    assert "of-no-report" not in text
    assert "of-one-that-passes" not in text


def test_what_clients_asked_in_a_failing_test(pytester: pytest.Pytester) -> None:
    test = """
        from confluent_kafka import Producer

        def test_it(kafka_broker, kafka_topic):
            producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "client.id": "shop"})
            producer.produce(kafka_topic, "1")
            assert producer.flush(10) == 1
    """
    pytester.makepyfile(test)
    without = pytester.runpytest_subprocess(*OPTIONS)
    without.stdout.fnmatch_lines(["*- Broker 127.0.0.1:*", "topics:", "last requests:", "  not recorded:*"])
    result = pytester.runpytest_subprocess(*OPTIONS, "--kafka-record")
    result.stdout.fnmatch_lines(["last requests:", "  <Produce v* of shop: test_it-*-0> -> ok"])
    pytester.makeini("[pytest]\nkafka_record = true")
    pytester.runpytest_subprocess(*OPTIONS).stdout.fnmatch_lines(["  <Produce v* of shop: test_it-*-0> -> ok"])
