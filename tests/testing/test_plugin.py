"""The pytest plugin, by running pytest in pytest."""

import re
import sys

import pytest

from barnabas.broker.handlers import load_handler, served_apis
from barnabas.testing import Broker
from tools.processes import children

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]


# Hypothesis would be imported anew, with its assertions rewritten, in every run.
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error", "--strict-markers")


@pytest.fixture(scope="module", autouse=True)
def all_modules() -> None:
    """pytester forgets modules that were first imported in a run inside this process: import all that a broker uses."""
    for key in served_apis():
        load_handler(key)
    with Broker() as broker:
        broker.create_topic("t").produce("v")


@pytest.fixture(autouse=True)
def no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """pytest in this process, with the plugin that the installation brings."""
    return pytester.runpytest_inprocess(*OPTIONS, *arguments)


def run_alone(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """pytest in a process of its own."""
    return pytester.runpytest_subprocess(*OPTIONS, *arguments)


def test_each_test_has_a_topic_of_its_own_and_all_share_a_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        topics, addresses = set(), set()

        @pytest.mark.parametrize("number", range(3))
        def test_write(kafka_broker, kafka_topic, number):
            kafka_broker.topic(kafka_topic).produce("v")
            assert len(kafka_broker.topic(kafka_topic).records()) == 1
            topics.add(kafka_topic)
            addresses.add(kafka_broker.bootstrap_servers)

        def test_all(kafka_broker):
            assert len(topics) == 3
            assert all(topic.startswith("test_write-") for topic in topics)
            assert addresses == {kafka_broker.bootstrap_servers}
            assert kafka_broker.topic_names() == []
    """)
    run(pytester).assert_outcomes(passed=4)


def test_the_marker_shapes_the_topic(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        from barnabas.testing import ApiError

        pytestmark = pytest.mark.kafka(partitions=2, configs={"max.message.bytes": 100})

        def test_of_the_module(kafka_broker, kafka_topic):
            assert kafka_broker.topic(kafka_topic).partition_count == 2

        @pytest.mark.kafka(partitions=5)
        def test_of_the_function(kafka_broker, kafka_topic):
            topic = kafka_broker.topic(kafka_topic)
            assert topic.partition_count == 5
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                topic.produce(bytes(200))
    """)
    run(pytester).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("partition=2", "*keywords configs, partitions, reset, not partition*"),
        ("3", "*keywords configs, partitions, reset, not 3*"),
        ("configs={'no.such': 1}", "*INVALID_CONFIG*no.such*"),
        ("partitions=0", "*INVALID_PARTITIONS*"),
    ],
)
def test_a_wrong_marker_is_an_error(pytester: pytest.Pytester, arguments: str, complaint: str) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.kafka({arguments})
        def test_it(kafka_topic):
            pass
    """)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([complaint])


def test_broker_configs_from_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("""
        [pytest]
        kafka_broker_configs =
            num.partitions=4
            auto.create.topics.enable = false
    """)
    pytester.makepyfile("""
        def test_it(kafka_broker):
            assert kafka_broker.create_topic("t").partition_count == 4
            assert not kafka_broker.server.config.auto_create_topics_enable
    """)
    run(pytester).assert_outcomes(passed=1)


def test_a_wrong_line_in_the_ini_file_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkafka_broker_configs = num.partitions")
    pytester.makepyfile("def test_it(kafka_broker): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*kafka_broker_configs: 'num.partitions' is not key=value*"])


def test_broker_configs_from_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_configs():
            return {"num.partitions": 4}
    """)
    pytester.makepyfile("""
        def test_it(kafka_broker):
            assert kafka_broker.create_topic("t").partition_count == 4
    """)
    run(pytester).assert_outcomes(passed=1)


def test_brokers_of_a_tests_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        brokers = []

        def test_two(kafka_broker_factory):
            brokers.extend([kafka_broker_factory(num_partitions=2), kafka_broker_factory()])
            assert [broker.create_topic("t").partition_count for broker in brokers] == [2, 1]

        def test_they_are_gone():
            assert [broker.is_running for broker in brokers] == [False, False]
    """)
    run(pytester).assert_outcomes(passed=2)


def test_a_test_may_delete_its_topic_and_stop_the_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_delete(kafka_broker, kafka_topic):
            kafka_broker.delete_topic(kafka_topic)

        def test_stop(kafka_broker, kafka_topic):
            kafka_broker.stop()
    """)
    run(pytester).assert_outcomes(passed=2)


def test_names_of_tests_become_legal_names_of_topics(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("text", ["", "a/b c", "\\u00e4\\u00f6", ".", "x" * 300, "%s"])
        def test_it(kafka_broker, kafka_topic, text):
            kafka_broker.topic(kafka_topic).produce(text)
    """)
    run(pytester).assert_outcomes(passed=6)


def test_every_worker_of_xdist_has_its_own_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        import pathlib
        import pytest

        seen = pathlib.Path(__file__).parent / "seen"

        @pytest.mark.parametrize("number", range(8))
        def test_it(kafka_broker, kafka_topic, number):
            kafka_broker.topic(kafka_topic).produce(str(number))
            assert [r.value for r in kafka_broker.topic(kafka_topic).records()] == [b"%d" % number]
            with seen.open("a") as file:
                file.write(os.environ["PYTEST_XDIST_WORKER"] + " " + kafka_broker.bootstrap_servers + "\\n")
    """)
    run_alone(pytester, "-n", "2", "--dist", "load").assert_outcomes(passed=8)
    seen = {tuple(line.split()) for line in (pytester.path / "seen").read_text().splitlines()}
    assert len(seen) == len({worker for worker, _ in seen}) == len({address for _, address in seen}) == 2


def test_the_marker_is_declared(pytester: pytest.Pytester) -> None:
    run(pytester, "--markers").stdout.fnmatch_lines(["@pytest.mark.kafka(partitions=None, configs={}, reset=None)*"])


def test_fixtures_are_described(pytester: pytest.Pytester) -> None:
    run(pytester, "--fixtures").stdout.fnmatch_lines_random(
        ["kafka_broker *", "kafka_topic *", "kafka_broker_configs *", "kafka_broker_factory *"]
    )


def test_runs_that_need_no_broker_do_not_load_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.startswith("barnabas")}
            assert loaded == {"barnabas", "barnabas.testing", "barnabas.testing.plugin"}
    """)
    run_alone(pytester).assert_outcomes(passed=1)


def test_the_package_tells_its_names_without_loading_them() -> None:
    code = """
import sys
import barnabas.testing
assert "barnabas.testing.brokers.broker" not in sys.modules
for name in barnabas.testing.__all__:
    assert getattr(barnabas.testing, name).__name__ == name
try:
    barnabas.testing.Brocker
except AttributeError as error:
    print(error)
"""
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'barnabas.testing' has no attribute 'Brocker'\n"


FIXED_NAMES = """
    import pytest

    def application(broker):
        broker.create_topic("orders").produce("1")
        assert len(broker.topic("orders").records()) == 1

    def test_once(kafka_broker):
        application(kafka_broker)

    def test_twice(kafka_broker):
        application(kafka_broker)

    @pytest.mark.kafka(reset={marked})
    def test_thrice(kafka_broker):
        application(kafka_broker)

    def test_after(kafka_broker):
        assert kafka_broker.topic_names() == {after}
"""


def test_reset_by_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXED_NAMES.format(marked=None, after=[]))
    run(pytester, "--kafka-reset").assert_outcomes(passed=4)


def test_reset_by_configuration_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkafka_reset = true")
    pytester.makepyfile(FIXED_NAMES.format(marked=None, after=[]))
    run(pytester).assert_outcomes(passed=4)


def test_no_reset_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXED_NAMES.format(marked=None, after=["orders"]))
    run(pytester).assert_outcomes(passed=2, failed=2)


def test_a_marker_decides(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXED_NAMES.format(marked=False, after=["orders"]))
    run(pytester, "--kafka-reset").assert_outcomes(passed=4)
    pytester.makepyfile("""
        import pytest

        pytestmark = pytest.mark.kafka(reset=True)

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(kafka_broker, number):
            kafka_broker.create_topic("orders")
    """)
    run(pytester, "test_a_marker_decides.py").assert_outcomes(passed=2)


CLUSTERS = """
    import pytest

    seen = []

    def use(cluster):
        seen.append(cluster.bootstrap_servers)
        cluster.create_topic("orders").produce("1")

    def test_of_its_own(kafka_cluster):
        use(kafka_cluster)

    @pytest.mark.parametrize("number", [1, 2])
    def test_of_the_session(kafka_cluster_of_session, number):
        use(kafka_cluster_of_session)
        kafka_cluster_of_session.cut(0, 1)
        kafka_cluster_of_session.brokers[2].kill()

    def test_of_the_module(kafka_cluster_of_module, kafka_cluster_of_session):
        use(kafka_cluster_of_module)
        assert len(set(seen)) == 3
        assert kafka_cluster_of_session.topic_names() == []
        assert len(kafka_cluster_of_session.faults) == 0
        assert all(broker.is_running for broker in kafka_cluster_of_session.brokers)

    @pytest.mark.kafka(reset=False)
    def test_that_keeps(kafka_cluster_of_module):
        use(kafka_cluster_of_module)

    def test_that_finds_it(kafka_cluster_of_module):
        assert kafka_cluster_of_module.topic_names() == ["orders"]

    class TestClass:
        def test_of_the_class(self, kafka_cluster_of_class):
            use(kafka_cluster_of_class)

        def test_stops_it(self, kafka_cluster_of_class):
            use(kafka_cluster_of_class)
            assert seen[-1] == seen[-2]
            kafka_cluster_of_class.stop()

    def test_of_no_cluster():
        pass
"""


def test_clusters_that_tests_share_are_as_new(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CLUSTERS)
    run(pytester, "--kafka-reset").assert_outcomes(passed=9)


def test_clusters_are_not_reset_by_themselves(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        def test_one(kafka_cluster_of_session):
            kafka_cluster_of_session.create_topic("orders")

        @pytest.mark.kafka(reset=True)
        def test_two(kafka_cluster_of_session):
            assert kafka_cluster_of_session.topic_names() == ["orders"]

        def test_three(kafka_cluster_of_session):
            assert kafka_cluster_of_session.topic_names() == []
    """)
    run(pytester).assert_outcomes(passed=3)


def test_topics_for_a_test_and_for_more(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        names, groups = set(), set()

        def test_one(kafka_broker, kafka_topics, kafka_topics_of_module, kafka_topics_of_session, kafka_group):
            assert kafka_topics("orders", partitions=3).partition_count == 3
            assert kafka_topics("orders", configs={"retention.ms": 1}).name.startswith("orders-")
            kafka_topics_of_module("shared").produce("1")
            kafka_topics_of_session("session").produce("1")
            assert len(kafka_broker.topic_names()) == 4
            groups.add(kafka_group)

        class TestClass:
            def test_two(self, kafka_broker, kafka_topics_of_class, kafka_group):
                kafka_topics_of_class("class")
                groups.add(kafka_group)

            def test_three(self, kafka_broker):
                assert [name.partition("-")[0] for name in kafka_broker.topic_names()] == ["class", "session", "shared"]

        def test_four(kafka_broker):
            assert [name.partition("-")[0] for name in kafka_broker.topic_names()] == ["session", "shared"]
            assert len(groups) == 2
    """)
    pytester.makepyfile(
        test_z="""
        def test_five(kafka_broker):
            assert [name.partition("-")[0] for name in kafka_broker.topic_names()] == ["session"]
    """
    )
    run(pytester).assert_outcomes(passed=5)


def test_a_reset_comes_after_whatever_a_test_did(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def failing(kafka_broker):
            kafka_broker.create_topic("orders")
            yield
            assert False, "at the end"

        def test_one(failing):
            pass

        def test_two(kafka_broker, request):
            assert kafka_broker.topic_names() == []
            kafka_broker.create_topic("orders")
            kafka_broker.kill()

        def test_three(request):
            broker = request.getfixturevalue("kafka_broker")
            assert broker.topic_names() == []
            broker.create_topic("orders")

        def test_four(kafka_broker):
            assert kafka_broker.topic_names() == []
            kafka_broker.stop()

        def test_five(kafka_broker):
            kafka_broker.create_topic("orders")
    """)
    run(pytester, "--kafka-reset").assert_outcomes(passed=5, errors=1)


def test_a_marker_that_is_misspelt_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka(rest=True)
        def test_it(kafka_broker):
            pass
    """)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the marker kafka takes the keywords configs, partitions, reset, not rest*"])


def test_a_group_for_more_than_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        seen = []

        class TestOne:
            def test_one(self, kafka_group_of_class, kafka_group_of_module, kafka_group_of_session):
                seen.append((kafka_group_of_class, kafka_group_of_module, kafka_group_of_session))

            def test_two(self, kafka_group_of_class, kafka_group_of_module, kafka_group_of_session):
                assert [(kafka_group_of_class, kafka_group_of_module, kafka_group_of_session)] == seen
                assert len(set(seen[0])) == 3

        def test_three(kafka_group_of_class, kafka_group_of_module, kafka_group_of_session):
            assert (kafka_group_of_module, kafka_group_of_session) == seen[0][1:]
            assert kafka_group_of_class != seen[0][0]
    """)
    run(pytester).assert_outcomes(passed=3)


def test_topics_that_tests_share_are_not_lost_unnoticed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_it(kafka_broker, kafka_topics_of_module):
            kafka_topics_of_module("shared")
    """)
    result = run(pytester, "--kafka-reset")
    result.assert_outcomes(passed=1)
    pytester.makepyfile("""
        def test_one(kafka_broker, kafka_topics_of_module):
            kafka_topics_of_module("shared")

        def test_two(kafka_broker):
            pass
    """)
    result = run(pytester, "--kafka-reset")
    result.assert_outcomes(passed=2, errors=1)
    told = (
        "kafka_broker cannot be reset while several tests share shared-*: make them for each test (kafka_topics), or *"
    )
    result.stdout.fnmatch_lines([f"*{told}"])


def test_shared_topics_outlive_a_tests_reset(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        def test_one(kafka_broker, kafka_topics_of_module):
            name = kafka_topics_of_module("shared").name
            with pytest.raises(RuntimeError, match=f"^kafka_broker cannot be reset while several tests share {name}: "):
                kafka_broker.reset()
            assert kafka_broker.topic_names() == [name]

        def test_restored(kafka_broker, kafka_topics_of_module):
            before = kafka_broker.snapshot()
            shared = kafka_topics_of_module("later")
            shared.produce("1")
            with pytest.raises(RuntimeError, match=f"be restored .* share {shared.name}: .*, or take a broker of"):
                kafka_broker.restore(before)
            with_it = kafka_broker.snapshot()
            shared.produce("2")
            kafka_broker.restore(with_it)
            assert len(shared.records()) == 1
    """)
    pytester.makepyfile(
        test_later="""
        def test_two(kafka_broker, kafka_topics):
            kafka_topics("own")
            kafka_broker.reset()
            assert kafka_broker.topic_names() == []
    """
    )
    run(pytester).assert_outcomes(passed=3)


def test_an_error_of_misuse_is_shown_in_the_line_that_makes_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        def use(kafka_broker, what):
            kafka_broker.create_topic("orders")
            if what == "again":
                kafka_broker.create_topic("orders")  # wrong
            if what == "missing":
                kafka_broker.topic("order").records()  # wrong
            if what == "api":
                kafka_broker.faults.fail("Produse", "NOT_LEADER_OR_FOLLOWER")  # wrong
            if what == "times":
                kafka_broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=0)  # wrong

        @pytest.mark.kafka(reset=True)
        @pytest.mark.parametrize("what", ["again", "missing", "api", "times"])
        def test_misuse(kafka_broker, what):
            use(kafka_broker, what)

        def test_factory(kafka_broker_factory):
            kafka_broker_factory(num_partitions="many")  # wrong

        def test_cluster(kafka_cluster):
            kafka_cluster.brokers[7]  # wrong
    """)
    result = run(pytester)
    result.assert_outcomes(failed=6)
    shown = result.stdout.str()
    assert len(re.findall(r"  # wrong\n( +\^+\n)?E  ", shown)) == 6
    assert "barnabas/testing/" not in shown


def test_an_error_of_the_tests_own_is_shown_where_it_comes_from(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        class Wrong:
            def __str__(self):
                raise ValueError("mine")  # here

        def test_configs(kafka_broker):
            kafka_broker.create_topic("t", configs={"retention.ms": Wrong()})
    """)
    run(pytester).stdout.fnmatch_lines(['>*raise ValueError("mine")  # here'])


def test_a_warning_of_a_key_points_at_the_line_that_has_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import asyncio
        from barnabas.testing import Broker, Cluster

        def test_factory(kafka_broker_factory):
            kafka_broker_factory(num_partition=1)  # line 5

        def test_with():
            with Broker(num_partition=1):  # line 8
                pass

        def test_start_elsewhere():
            broker = Broker(num_partition=1)  # line 12
            broker.start()
            broker.stop()

        def test_async():
            async def use():
                async with Broker(num_partition=1):  # line 18
                    pass

            asyncio.run(use())

        def test_cluster():
            with Cluster(1, num_partition=1):  # line 24
                pass
    """)
    result = pytester.runpytest_inprocess(*OPTIONS, "-W", "always")
    result.assert_outcomes(passed=5, warnings=5)
    file = "test_a_warning_of_a_key_points_at_the_line_that_has_it.py"
    for line in (5, 8, 12, 18, 24):
        result.stdout.fnmatch_lines([f"*{file}:{line}: UserWarning: num.partition is not a configuration of *"])


def test_a_warning_of_a_configuration_key_names_its_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkafka_broker_configs = num.partition=1")
    pytester.makepyfile("def test_it(kafka_broker): pass")
    result = pytester.runpytest_inprocess(*OPTIONS, "-W", "always")
    result.stdout.fnmatch_lines(
        ["*barnabas/testing/plugin.py:*: UserWarning: num.partition is not a configuration of *"]
    )
