"""Kafka Streams in a Java process of its own, its functions written in Python and called back by py4j."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, find_jar_path, launch_gateway
from py4j.protocol import Py4JError

from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.foreign.kafka import streams_runtime
from tools.waiting import wait_until


class _Function:
    """A Python function as one of Streams' functional interfaces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def apply(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def toString(self) -> str:
        return "a Python function"


class _ValueMapper(_Function):
    class Java:
        implements = ("org.apache.kafka.streams.kstream.ValueMapper",)


class _KeyValueMapper(_Function):
    class Java:
        implements = ("org.apache.kafka.streams.kstream.KeyValueMapper",)


class _ValueJoiner(_Function):
    class Java:
        implements = ("org.apache.kafka.streams.kstream.ValueJoiner",)


class Streams:
    """Builds topologies and runs applications of Kafka Streams."""

    def __init__(self, gateway: JavaGateway, bootstrap_servers: str, folder: Path) -> None:
        self._gateway = gateway
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder
        self._running: list[Any] = []
        self.java = gateway.jvm
        self.streams = gateway.jvm.org.apache.kafka.streams
        self.dsl = self.streams.kstream
        serdes = gateway.jvm.org.apache.kafka.common.serialization.Serdes
        self.text, self.long = serdes.String(), serdes.Long()

    def named(self, java_class: Any, method: str, *arguments: Any) -> Any:
        """Call a static method whose name is a keyword of Python (`with`, `as`)."""
        return getattr(java_class, method)(*arguments)

    def values(self, function: Callable[[Any], Any]) -> Any:
        return _ValueMapper(function)

    def keys_and_values(self, function: Callable[[Any, Any], Any]) -> Any:
        return _KeyValueMapper(function)

    def joiner(self, function: Callable[[Any, Any], Any]) -> Any:
        return _ValueJoiner(function)

    def list_of(self, items: list[str]) -> Any:
        """A java.util.List, as a function's answer is not converted by itself."""
        result = self.java.java.util.ArrayList()
        for item in items:
            result.add(item)
        return result

    def start(self, application: str, builder: Any, **settings: Any) -> Any:
        """Run an application until the test ends or closes it; returns once it runs.

        Each start has a state directory of its own: what an application knows comes back from its changelog topics.
        """
        properties = self.java.java.util.Properties()
        chosen = {
            "application.id": application,
            "bootstrap.servers": self._bootstrap_servers,
            "state.dir": str(self._folder / secrets.token_hex(4)),
            "commit.interval.ms": "200",
            "statestore.cache.max.bytes": "0",
            "auto.offset.reset": "earliest",
            **settings,
        }
        for key, value in chosen.items():
            properties.put(key.replace("_", "."), str(value))
        running = self.streams.KafkaStreams(builder.build(), properties)
        self._running.append(running)
        running.start()
        self.wait_running(running)
        return running

    def wait_running(self, *applications: Any) -> None:
        def states() -> list[str]:
            found = [each.state().toString() for each in applications]
            assert "ERROR" not in found
            return found

        wait_until(lambda: set(states()) <= {"RUNNING"}, lambda: f"RUNNING: {states()}")

    def close(self, running: Any) -> None:
        """End an application: it commits and (not Streams' default) leaves its group, so that nobody waits for it."""
        leaving = self.streams.CloseOptions.GroupMembershipOperation.LEAVE_GROUP
        options = self.streams.CloseOptions.groupMembershipOperation(leaving)
        assert running.close(options.withTimeout(self.java.java.time.Duration.ofSeconds(30)))
        self._running.remove(running)

    def close_all(self) -> None:
        for running in list(self._running):
            self.close(running)


@pytest.fixture(scope="session")
def gateway() -> Iterator[JavaGateway]:
    try:
        java = find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    runtime = streams_runtime()
    logging_options = [option for option in runtime.java_command("Main") if option.startswith("-Dlog4j")]
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    port, process = launch_gateway(
        classpath=runtime.classpath,
        javaopts=["-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *logging_options],
        java_path=str(java),
        jarpath=find_jar_path(),
        die_on_exit=True,
        return_proc=True,
    )
    made = JavaGateway(
        gateway_parameters=GatewayParameters(port=port),
        callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
    )
    server = made.java_gateway_server
    python_port = made.get_callback_server().get_listening_port()
    server.resetCallbackClient(server.getCallbackClient().getAddress(), python_port)
    yield made
    with suppress(Py4JError):
        made.shutdown()
    process.communicate()


@pytest.fixture
def streams(gateway: JavaGateway, cluster: Any, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(gateway, cluster.bootstrap_servers, tmp_path)
    yield made
    made.close_all()


@pytest.fixture
def application() -> str:
    """An application id nobody used before."""
    return f"streams-{secrets.token_hex(6)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.slow)
            # py4j leaves its sockets of callbacks to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
