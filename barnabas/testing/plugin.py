"""The pytest plugin: a broker for the test session, fresh topics and groups for each test, or a broker that is reset
after each test; clusters, for one test or for several. See docs/testing.md.

pytest loads this module in every run of an environment that has Barnabas installed, so it imports the broker only when
a fixture needs it. Under pytest-xdist every worker is a process, with a session and thus a broker of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from barnabas.testing.brokers.broker import Broker
    from barnabas.testing.brokers.cluster import Cluster
    from barnabas.testing.contents.topic import Topic

INI_OPTION = "kafka_broker_configs"
BROKER = "kafka_broker"
CLUSTER = "kafka_cluster"
MARKER = "kafka"
MARKER_ARGUMENTS = frozenset({"partitions", "configs", "reset"})
RESET_OPTION = "--kafka-reset"
RESET_INI = "kafka_reset"
RECORD_OPTION = "--kafka-record"
RECORD_INI = "kafka_record"
PACKAGE = "barnabas.testing."
RAISING = ("barnabas.", "concurrent.futures.")
"""The modules that raise our errors: TimeoutErrors are created again when a thread receives them."""

RUNNERS = ("_pytest.", "pluggy.")
"""The modules whose frames pytest does not show: if only these call, a fixture of this plugin is shown."""

REPORT_MODULE = "barnabas.testing.brokers.report"
NAME_LENGTH_MAX = 200
_numbers = count(1)
_lasting = pytest.StashKey[dict[str, "Broker | Cluster"]]()
"""Brokers and clusters that last longer than a test, by fixture name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of pytest's configuration file and of its command line."""
    parser.addini(INI_OPTION, "Broker configs of the kafka_broker fixture, one key=value per line", type="linelist")
    shared = "a broker or cluster that tests share"
    parser.addini(RESET_INI, f"Reset {shared} after each test that uses it", type="bool")
    parser.getgroup("barnabas").addoption(
        RESET_OPTION, action="store_true", help=f"reset {shared} after each test that uses it"
    )
    fixtures = "the brokers and clusters of fixtures"
    parser.addini(RECORD_INI, f"Record what clients ask {fixtures}, for the report of a test that fails", type="bool")
    parser.getgroup("barnabas").addoption(
        RECORD_OPTION, action="store_true", help=f"record what clients ask {fixtures}, for the report of a failing test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, for --markers and --strict-markers."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(partitions=None, configs={{}}, reset=None): partition count and topic configs of the test's "
        "kafka_topic; whether kafka_broker, or a cluster that tests share, is reset after the test",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker with unknown arguments; former recordings do not belong to this test."""
    brokers = sys.modules.get(REPORT_MODULE)
    if brokers is not None:
        brokers.test_begins()
    for marker in item.iter_markers(MARKER):
        unknown = set(marker.kwargs) - MARKER_ARGUMENTS
        if marker.args or unknown:
            raise pytest.UsageError(
                f"the marker {MARKER} takes the keywords {', '.join(sorted(MARKER_ARGUMENTS))}, "
                f"not {', '.join([*map(repr, marker.args), *sorted(unknown)])}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Reset brokers and clusters that tests share, after a test that used them, and its fixtures, have ended."""
    try:
        yield
    finally:
        if _is_reset_wanted(item):
            _reset(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record the requests of clients to the brokers and clusters of fixtures, if requested."""
    owners: list[Broker | Cluster] = []
    if item.config.getoption(RECORD_OPTION) or item.config.getini(RECORD_INI):
        own = getattr(item, "funcargs", {}).get(CLUSTER)
        owners = [*item.config.stash.get(_lasting, {}).values(), *([] if own is None else [own])]
    with ExitStack() as recordings:
        for owner in owners:
            recordings.enter_context(owner.recorded())
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state and the last requests of the brokers that a failing test has started or used to its report."""
    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        _shorten(call.excinfo)
    report = yield
    brokers = sys.modules.get(REPORT_MODULE)  # absent: no test has used a broker
    if brokers is not None and report.failed:
        of_class = vars(getattr(item, "cls", None) or object).values()  # unittest's setUpClass stores objects there
        report.sections += brokers.sections(item.nodeid, [*getattr(item, "funcargs", {}).values(), *of_class])
    return report


@pytest.fixture(scope="session")
def kafka_broker_configs(pytestconfig: pytest.Config) -> dict[str, object]:
    """Configs of the session's broker by Kafka's keys; override this fixture to set others."""
    configs: dict[str, object] = {}
    for line in pytestconfig.getini(INI_OPTION):
        key, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"{INI_OPTION}: {line!r} is not key=value")
        configs[key.strip()] = value.strip()
    return configs


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_configs: dict[str, object], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker that runs as long as the test session; with `--kafka-reset` it is reset after each test."""
    from barnabas.testing.brokers.broker import Broker

    with Broker(configs=kafka_broker_configs) as broker, _known(pytestconfig, BROKER, broker):
        yield broker


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[str]:
    """The name of a topic for this test alone, deleted afterwards; see the marker `kafka`."""
    partitions, configs = _topic_settings(request)
    name = _fresh_name(request)
    kafka_broker.create_topic(name, partitions, configs)
    yield name
    _delete(kafka_broker, [name])


@pytest.fixture
def kafka_topics(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[Callable[..., Topic]]:
    """Creates topics for this test alone, deleted afterwards: `kafka_topics("orders", partitions=3)`; the topic's name
    begins with that text.
    """
    names: list[str] = []
    yield partial(_new_topic, request, kafka_broker, names)
    _delete(kafka_broker, names)


@pytest.fixture(scope="class")
def kafka_topics_of_class(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[Callable[..., Topic]]:
    """Like `kafka_topics`, for topics that the tests of a class share."""
    yield from _topics_to_share(request, kafka_broker)


@pytest.fixture(scope="module")
def kafka_topics_of_module(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[Callable[..., Topic]]:
    """Like `kafka_topics`, for topics that the tests of a module share."""
    yield from _topics_to_share(request, kafka_broker)


@pytest.fixture(scope="session")
def kafka_topics_of_session(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[Callable[..., Topic]]:
    """Like `kafka_topics`, for topics that all tests share."""
    yield from _topics_to_share(request, kafka_broker)


@pytest.fixture
def kafka_group(request: pytest.FixtureRequest) -> str:
    """The id of a consumer group that no other test uses; the group does not exist yet."""
    return _fresh_name(request, "group")


@pytest.fixture(scope="class")
def kafka_group_of_class(request: pytest.FixtureRequest) -> str:
    """Like `kafka_group`, for the tests of a class."""
    return _fresh_name(request, "group")


@pytest.fixture(scope="module")
def kafka_group_of_module(request: pytest.FixtureRequest) -> str:
    """Like `kafka_group`, for the tests of a module."""
    return _fresh_name(request, "group")


@pytest.fixture(scope="session")
def kafka_group_of_session(request: pytest.FixtureRequest) -> str:
    """Like `kafka_group`, for all tests."""
    return _fresh_name(request, "group")


@pytest.fixture
def kafka_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Starts brokers for this test alone: `kafka_broker_factory(num_partitions=3)`, stopped after the test."""
    from barnabas.testing.brokers.broker import Broker

    brokers: list[Broker] = []

    def start(**keywords: object) -> Broker:
        broker = Broker(**keywords)  # type: ignore[arg-type]
        brokers.append(broker)
        return broker.start()

    try:
        yield start
    finally:
        for broker in brokers:
            broker.stop()


@pytest.fixture
def kafka_cluster() -> Iterator[Cluster]:
    """Three brokers for this test alone, which it may stop, kill and cut off from each other."""
    from barnabas.testing.brokers.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="class")
def kafka_cluster_of_class(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers that the tests of a class share; with `--kafka-reset` they are reset after each test."""
    yield from _cluster_to_share(request)


@pytest.fixture(scope="module")
def kafka_cluster_of_module(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers that the tests of a module share; with `--kafka-reset` they are reset after each test."""
    yield from _cluster_to_share(request)


@pytest.fixture(scope="session")
def kafka_cluster_of_session(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers that all tests share; with `--kafka-reset` they are reset after each test that uses them."""
    yield from _cluster_to_share(request)


def _shorten(failure: pytest.ExceptionInfo[BaseException]) -> None:
    """Show an error of Barnabas at the line of the test, or of its fixture, that made the refused request, or waited:
    the frames from there through the broker's threads do not help the reader of a test.
    """
    entries = [failure.tb]
    while (following := entries[-1].tb_next) is not None:
        entries.append(following)
    modules = [str(entry.tb_frame.f_globals.get("__name__", "")) for entry in entries]
    if not modules[-1].startswith(RAISING) or not _is_told_in_a_line(failure.value):
        return  # raised by other code, such as a predicate of the test; or it may be our own bug
    for entry, asking, asked in zip(entries, modules, modules[1:], strict=False):
        if asked.startswith(PACKAGE) and not asking.startswith(RUNNERS):
            entry.tb_next = None
            return


def _is_told_in_a_line(error: BaseException) -> bool:
    from barnabas.testing import ApiError, ConfigError

    refusals = (ApiError, ConfigError, IndexError, RuntimeError, TypeError, ValueError)
    return isinstance(error, (TimeoutError, *refusals))


def _cluster_to_share(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    from barnabas.testing.brokers.cluster import Cluster

    assert request.fixturename is not None
    with Cluster() as cluster, _known(request.config, request.fixturename, cluster):
        yield cluster


@contextmanager
def _known(config: pytest.Config, fixture: str, owner: Broker | Cluster) -> Iterator[None]:
    """Register an object that lasts longer than a test, for resets and recordings."""
    lasting = config.stash.setdefault(_lasting, {})
    lasting[fixture] = owner
    try:
        yield
    finally:
        del lasting[fixture]


def _topics_to_share(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Callable[..., Topic]]:
    names, own = broker._shared_topics, list[str]()

    def create(*arguments: Any, **keywords: Any) -> Topic:
        topic = _new_topic(request, broker, own, *arguments, **keywords)
        names.append(topic.name)
        return topic

    yield create
    for name in own:
        names.remove(name)
    _delete(broker, own)


def _new_topic(
    request: pytest.FixtureRequest,
    broker: Broker,
    names: list[str],
    readable: str = "",
    partitions: int | None = None,
    configs: Mapping[str, object] | None = None,
) -> Topic:
    topic = broker.create_topic(_fresh_name(request, readable), partitions, configs)
    names.append(topic.name)
    return topic


def _delete(broker: Broker, names: list[str]) -> None:
    from barnabas.testing import ApiError

    for name in names:
        if broker.is_running:
            with suppress(ApiError):  # the test has deleted it, or the broker does not allow it
                broker.delete_topic(name)


def _reset(item: pytest.Item) -> None:
    for name, owner in item.config.stash.get(_lasting, {}).items():
        if name not in _fixtures_of(item):
            continue
        try:
            owner._check_may_be_reset()
        except RuntimeError as refused:
            pytest.fail(str(refused), pytrace=False)
        if not owner.is_running:  # the test has killed or stopped it
            owner.start()
        owner.reset()


def _fixtures_of(item: pytest.Item) -> Container[str]:
    """The fixtures that a test used: by name, and by `request.getfixturevalue`, which pytest does not report."""
    by_call = getattr(getattr(item, "_request", None), "_fixture_defs", {})
    return {*getattr(item, "fixturenames", ()), *by_call}


def _is_reset_wanted(item: pytest.Item) -> bool:
    for marker in item.iter_markers(MARKER):
        if marker.kwargs.get("reset") is not None:
            return bool(marker.kwargs["reset"])
    return bool(item.config.getoption(RESET_OPTION) or item.config.getini(RESET_INI))


def _topic_settings(request: pytest.FixtureRequest) -> tuple[int | None, dict[str, object]]:
    """Partition count and configs from the markers around the test: the nearest one counts."""
    partitions: int | None = None
    configs: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        partitions = marker.kwargs.get("partitions", partitions)
        configs |= marker.kwargs.get("configs", {})
    return partitions, configs


def _fresh_name(request: pytest.FixtureRequest, readable: str = "") -> str:
    """A legal name of a topic or group that shows its purpose, or its test; the number makes it unique."""
    found = re.sub(r"[^a-zA-Z0-9_.]+", "-", readable or request.node.name).strip("-.")[:NAME_LENGTH_MAX]
    return f"{found or 'topic'}-{next(_numbers)}"
