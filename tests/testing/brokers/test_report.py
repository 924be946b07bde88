"""The broker's report in a failing assertion, and in a failing test."""

import logging
import re
import sys

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.broker.server import Broker as Server
from barnabas.testing import Broker, Cluster, Topic
from barnabas.testing.brokers import report
from barnabas.testing.brokers.log_lines import LINES_KEPT
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

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
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", "not committed", partition=1)
    assert producer.flush(PATIENCE_S) == 0
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


def test_the_report_of_an_empty_broker_says_none(broker: Broker) -> None:
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


def test_the_report_has_the_log(broker: Broker) -> None:
    logging.getLogger("barnabas.test").warning("the disk is on fire")
    with pytest.raises(TimeoutError) as error:
        broker.wait_group("g", timeout=0.05)
    assert any(line.endswith("WARNING barnabas.test: the disk is on fire") for line in explanation(error))


def test_the_report_lacks_the_log_of_other_brokers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import logging
        import pytest
        from barnabas.testing import Broker, Cluster

        async def log(line):
            logging.getLogger("barnabas.test").warning(line)

        def test_before(kafka_broker):
            kafka_broker.call(log("of the test before"))

        def test_it(kafka_broker):
            kafka_broker.call(log("of this broker"))
            logging.getLogger("barnabas.test").warning("of nobody")
            with Broker() as broker, Cluster(2) as cluster:
                broker.call(log("of another broker"))
                cluster.call(log("of a cluster"))
                with pytest.raises(TimeoutError) as error:
                    kafka_broker.wait_group("g", timeout=0.05)
                lines = [line for line in str(error.value).splitlines() if "barnabas.test" in line]
                assert [line.rpartition(": ")[2] for line in lines] == ["of this broker", "of nobody"]
                with pytest.raises(TimeoutError, match="of a cluster"):
                    cluster.leader("u", timeout=0.1)
    """)
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=2)


def logged(owner: Broker | Cluster) -> list[str]:
    """The lines that a test had a broker log, as in its report."""
    lines = [line for line in owner.report().splitlines() if "barnabas.test" in line]
    return [line.rpartition(": ")[2] for line in lines]


def warn(line: str) -> None:
    logging.getLogger("barnabas.test").warning(line)


async def warn_everywhere(server: Server, line: str) -> None:
    """On the event loop, and in the threads of all kinds."""
    store = server.environment.store_worker()
    threads = server.environment.threads
    workers = threads.workers("test", 1)
    await threads.call(warn, f"{line} by a thread")
    await workers.call(warn, f"{line} by a worker")
    await threads.call(threads.run, [[lambda: warn(f"{line} by a group")]], 1, "test")
    await workers.stop()
    await store.submit(lambda: warn(f"{line} by a store"))
    store.stop()
    warn(line)


def test_no_broker_tells_what_one_that_is_gone_has_logged() -> None:
    """The threads of the next one have the numbers of those that ended."""
    of_gone = ["gone by a thread", "gone by a worker", "gone by a group", "gone by a store", "gone"]
    warn("before all")
    with Broker() as gone:
        gone.call(warn_everywhere(gone.server, "gone"))
        assert logged(gone) == of_gone
        with Broker() as beside:
            assert logged(beside) == []
    with Broker() as after:
        after.call(warn_everywhere(after.server, "after"))
        assert logged(after) == [line.replace("gone", "after") for line in of_gone]
    with Cluster(1) as cluster:
        cluster.call(warn_everywhere(cluster.brokers[0].server, "cluster"))
        assert logged(cluster) == [line.replace("gone", "cluster") for line in of_gone]


def test_a_broker_that_logs_much_leaves_room_for_others(broker: Broker) -> None:
    async def log_much() -> None:
        for number in range(2 * LINES_KEPT):
            warn(f"much {number}")

    broker.call(warn_everywhere(broker.server, "kept"))
    with Broker() as other:
        other.call(log_much())
        assert logged(other)[-1] == f"much {2 * LINES_KEPT - 1}"
    assert logged(broker)[-1] == "kept"


def test_a_killed_broker_tells_what_it_logged_before(broker: Broker) -> None:
    broker.call(warn_everywhere(broker.server, "before"))
    broker.kill()
    broker.start()
    assert logged(broker)[-1] == "before"


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


def test_the_report_equals_a_failed_waits_explanation(broker: Broker) -> None:
    use(broker)
    with pytest.raises(TimeoutError) as error:
        broker.wait_group("g", timeout=0.05)
    assert broker.report().splitlines() == explanation(error)[1:]
    assert "  orders-0 has the offsets from 0 to before 1" in broker.report()


def test_a_cluster() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic("t")
        with pytest.raises(TimeoutError, match="no broker leads u-0") as error:
            cluster.leader("u", timeout=0.1)
        leader = cluster.leader("t")
        told = f"  t-0 has the offsets from 0 to before 0; led by broker {leader}, ISR 0, 1 of 0, 1"
        assert told in explanation(error)
        assert "brokers:" not in explanation(error)


def test_a_cluster_that_is_not_well() -> None:
    """The report names the brokers that are down, the replicas in sync, and the partitions without a leader."""
    with Cluster(2, min_insync_replicas=1) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("alone", partitions=2, replication_factor=1)  # one on each broker
        cluster.wait_in_sync()
        killed = cluster.leader("t")
        other = 1 - killed
        lost = next(index for index in range(2) if cluster.leader("alone", index) == killed)
        cluster.brokers[killed].kill()
        assert cluster.leader("t") == other
        lines = cluster.report().splitlines()
    assert lines[:2] == ["brokers:", f"  broker {killed} does not run"]
    assert f"  t-0 has the offsets from 0 to before 0; led by broker {other}, ISR {other} of 0, 1" in lines
    assert f"  alone-{lost} has no leader" in lines


def test_leaderless_partitions_are_in_the_report(broker: Broker) -> None:
    broker.create_topic("t")
    with broker.faults.partition_offline("t"):
        assert "  t-0 has no leader" in broker.report().splitlines()


def test_warnings_are_printed_as_without_us() -> None:
    """A program that has not set up logging sees warnings once, as Python prints them by itself."""
    program = """
import logging
from barnabas.testing import Broker
with Broker():
    logging.getLogger("barnabas.test").warning("the disk is on fire")
    logging.getLogger("barnabas.test").info("no news")
"""
    done = children.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
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


def test_a_failing_test_that_got_a_broker_with_other_things(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import unittest
        import pytest
        from barnabas.testing import Broker

        @pytest.fixture(scope="module")
        def prepared():
            with Broker() as broker:
                broker.create_topic("of-pair")
                yield broker, broker.snapshot()

        def test_passes(prepared):
            pass

        def test_pair(prepared):
            assert False

        class TestInClass(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.broker = Broker().start()
                cls.broker.create_topic("of-class")
                cls.addClassCleanup(cls.broker.stop)

            def test_a(self):
                pass

            def test_b(self):
                assert False
    """)
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=2, passed=2)
    text = result.stdout.str()
    assert "  of-pair-0 has the offsets from 0" in text
    assert "  of-class-0 has the offsets from 0" in text


def test_faults_that_ended_in_the_test_are_told(pytester: pytest.Pytester) -> None:
    """By the end of its `with` block a fault is over, when what it has brought about is told; those of other tests are
    no news."""
    pytester.makepyfile("""
        def test_one(kafka_broker):
            with kafka_broker.faults.fail("Heartbeat", 16):
                pass

        def test_two(kafka_broker):
            for times in range(1, 13):
                with kafka_broker.faults.fail("Produce", 6, times=times):
                    pass
            with kafka_broker.faults.hold("Fetch"):
                assert "faults:\\n  <hold Fetch, 0 hits>\\n  ended: <fail Produce" in kafka_broker.report()
            assert False
    """)
    text = pytester.runpytest_subprocess(*OPTIONS).stdout.str()
    told = re.findall(r"^  ended: <(.*)>$", text, re.M)
    failing = [f"fail Produce NOT_LEADER_OR_FOLLOWER (times={times}), 0 hits" for times in range(4, 13)]
    assert told == [*failing, "hold Fetch, 0 hits"]


def test_the_report_shows_where_the_test_waited(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_it(kafka_broker):
            kafka_broker.topic("t").wait_records(1, timeout=0.05)
    """)
    text = pytester.runpytest_subprocess(*OPTIONS).stdout.str()
    assert re.search(r"^E +TimeoutError: after 0\.05 s topic t holds 0 records, not 1$", text, re.M)
    assert "test_the_report_shows_where_the_test_waited.py:2: TimeoutError" in text
    assert "futures" not in text
    assert "futures" in pytester.runpytest_subprocess(*OPTIONS, "--full-trace").stdout.str()


def test_the_report_of_a_failing_test_has_its_requests(pytester: pytest.Pytester) -> None:
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
    without.stdout.no_fnmatch_line("chart of the last requests:")
    result = pytester.runpytest_subprocess(*OPTIONS, "--kafka-record")
    result.stdout.fnmatch_lines(["last requests:", "  <Produce v* of shop: test_it-*-0> -> ok"])
    pytester.makeini("[pytest]\nkafka_record = true")
    pytester.runpytest_subprocess(*OPTIONS).stdout.fnmatch_lines(["  <Produce v* of shop: test_it-*-0> -> ok"])


def test_clients_asked_nothing(pytester: pytest.Pytester) -> None:
    """The report distinguishes this from the case that nothing was recorded."""
    pytester.makepyfile("""
        def test_recorded(kafka_broker):
            assert False

        def test_recorded_by_itself(kafka_broker):
            with kafka_broker.recorded():
                pass
            assert False
    """)
    told = pytester.runpytest_inprocess(*OPTIONS, "--kafka-record").stdout.str()
    assert re.findall("^last requests:.*", told, re.MULTILINE) == ["last requests: none"] * 2


def test_the_report_lacks_requests_of_earlier_tests(pytester: pytest.Pytester) -> None:
    """Whether that recording is over or goes on."""
    pytester.makepyfile("""
        import pytest
        from confluent_kafka import Producer

        def write(broker, topic):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
            producer.produce(topic, "1")
            assert producer.flush(30) == 0

        @pytest.fixture(scope="module")
        def recording(kafka_broker):
            with kafka_broker.recorded() as seen:
                yield seen

        def test_before(kafka_broker):
            with kafka_broker.recorded():
                write(kafka_broker, "early")

        def test_without(kafka_broker):
            report = kafka_broker.report()
            assert "early" not in report.partition("last requests:")[2]
            assert "not recorded: " in report
            assert kafka_broker.requests("Produce")
            assert False

        def test_first_of_a_recording(kafka_broker, recording):
            write(kafka_broker, "first")
            assert "first" in kafka_broker.report().partition("last requests:")[2]

        def test_idle_in_a_recording(kafka_broker, recording):
            assert "last requests: none" in kafka_broker.report()
            assert False

        def test_second_of_a_recording(kafka_broker, recording):
            write(kafka_broker, "second")
            assert False
    """)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=2, failed=3)
    told = result.stdout.str()
    without, idle, second = re.findall(r"^last requests:(.*?)^log:", told, re.MULTILINE | re.DOTALL)
    assert without.startswith("\n  not recorded: ")
    assert idle == " none\n"
    assert "second-0> -> ok" in second
    assert "first" not in second
    assert len(re.findall(r"^chart of the last requests:", told, re.MULTILINE)) == 1


def test_the_chart_of_a_failing_test(pytester: pytest.Pytester) -> None:
    """Of a broker, of a cluster, and of a broker that is gone by then; of the last requests alone."""
    pytester.makepyfile("""
        from barnabas.testing import Broker
        from confluent_kafka import Producer

        def write(owner, count=1):
            producer = Producer({"bootstrap.servers": owner.bootstrap_servers, "client.id": "shop", "linger.ms": 0})
            for number in range(count):
                producer.produce("t", "1")
                producer.flush(30)

        def test_broker(kafka_broker):
            kafka_broker.create_topic("t")
            write(kafka_broker, 30)
            assert False

        def test_cluster(kafka_cluster):
            kafka_cluster.create_topic("t")
            write(kafka_cluster)
            assert False

        def test_shared_cluster(kafka_cluster_of_session):
            kafka_cluster_of_session.create_topic("t")
            write(kafka_cluster_of_session)
            assert False

        def test_block():
            with Broker() as broker, broker.recorded():
                broker.create_topic("t")
                write(broker)
                assert False

        def test_that_asks_nothing(kafka_cluster):
            assert False
    """)
    result = pytester.runpytest_subprocess(*OPTIONS, "--kafka-record")
    result.assert_outcomes(failed=5)
    text = result.stdout.str()
    pieces = re.split(r"\n_+ (test_\w+) _+\n", text.partition("short test summary")[0])[1:]
    parts = dict(zip(pieces[::2], pieces[1::2], strict=True))
    assert "chart of" not in parts.pop("test_that_asks_nothing")
    for name, part in parts.items():
        _, chart = part.split("chart of the last requests:\n")
        assert re.match(r" +shop +broker \d", chart), name
        assert re.search(r"\d ms \|.* Produce v\d+ t-0 -+>", chart), name
        assert re.search(r"\d ms \|<-+ Produce: ok -", chart), name
        if name == "test_broker":
            assert chart.count("Produce v") == chart.count("Produce: ok") == report.CHART_REQUESTS_MAX
