"""The same requests to both brokers, and what differs in their answers."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from barnabas.broker.handlers import load_handler
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.wire.schema import Message
from compat_tests.differential.known import KnownDifference, explain
from compat_tests.differential.values import Difference, Names, as_text, differences, plain
from compat_tests.semantics.client import Connection, ConnectionClosed, fetch_request, topic_metadata
from tools.waiting import wait_until

SETTLE_S = 1.0
"""How long a scenario may altogether wait for answers to become equal."""
POLL_S = 0.05
CLOSED = "connection closed"
SILENT = "no answer"
ANSWER_TIMEOUT_S = 5.0
UNDECODABLE = "undecodable answer"
READ_ONLY = {2, 3, 9, 10, 15, 16, 23, 32, 35, 60, 61, 74, 75}
"""APIs that may be asked again, while metadata is on its way through a broker."""

Build = Message | Callable[["Side"], Message]


class Side:
    """One of the brokers: its connections, and its ids by the names that a scenario gave them."""

    def __init__(self, title: str, bootstrap_servers: str, log_dir: str) -> None:
        self.title = title
        self.names = Names(bootstrap_servers.rpartition(":")[2], log_dir)
        self.ids: dict[str, Any] = {}
        self.last: Any = None
        """The newest answer; None if the connection was closed instead."""
        self._bootstrap_servers = bootstrap_servers
        self._connections: dict[str, Connection] = {}

    def connection(self, name: str = "") -> Connection:
        """A connection of the scenario, opened when it is first used."""
        if name not in self._connections:
            self._connections[name] = Connection(self._bootstrap_servers, ANSWER_TIMEOUT_S)
        return self._connections[name]

    def drop(self, name: str) -> None:
        """Forget a connection; the next use opens a new one."""
        if name in self._connections:
            self._connections.pop(name).close()

    def new_scenario(self) -> None:
        for name in list(self._connections):
            self.drop(name)
        self.names.forget()
        self.ids.clear()

    def topic_id(self, name: str) -> bytes:
        return bytes(self.ids[name])


class Finding(NamedTuple):
    """A difference and where it was found."""

    scenario: str
    api: str
    version: int
    request: str
    difference: Difference
    kafka_fails: bool
    """Kafka's answer says UNKNOWN_SERVER_ERROR."""
    known: KnownDifference | None = None


class Run:
    """The interface for scenarios: sends requests to both brokers, and keeps the findings."""

    def __init__(self, kafka: Side, barnabas: Side) -> None:
        self.kafka, self.barnabas = kafka, barnabas
        self.sides = (kafka, barnabas)
        self.findings: list[Finding] = []
        self.requests: dict[int, set[str]] = defaultdict(set)
        """Every distinct request, by API key."""
        self.answered: set[tuple[int, int]] = set()
        """API key and version of the well-formed requests that both brokers answered."""
        self.name = ""
        self._patience_s = SETTLE_S

    @property
    def request_count(self) -> int:
        return sum(map(len, self.requests.values()))

    @property
    def unexpected(self) -> list[Finding]:
        """The differences that are not declared."""
        return [finding for finding in self.findings if finding.known is None]

    def play(self, scenario: Callable[["Run"], None]) -> None:
        """Run one scenario with fresh connections; names of topics and groups carry its own."""
        self.name = scenario.__name__
        self._patience_s = SETTLE_S
        self.close()
        scenario(self)

    def close(self) -> None:
        """Close all connections; a scenario starts without any."""
        for side in self.sides:
            side.new_scenario()

    def warm_up(self) -> None:
        """Wait until both have made their internal topic and can hand out producer ids."""
        coordinator = FindCoordinatorRequest(coordinator_keys=["warm-up"], key_type=0)
        offsets = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="warm-up", topics=None)])
        for side in self.sides:
            ask = side.connection("helper").ask
            wait_until(lambda: ask(coordinator, 4).coordinators[0].error_code == 0)  # noqa: B023
            wait_until(lambda: ask(offsets, 8).groups[0].error_code == 0)  # noqa: B023
            wait_until(lambda: ask(InitProducerIdRequest(transactional_id=None), 4).error_code == 0)  # noqa: B023

    # --- names and topics -------------------------------------------------------------------------

    def fresh(self, suffix: str = "t") -> str:
        """A topic's or group's name that only this scenario uses."""
        return f"{self.name}-{suffix}"

    def create_topic(self, suffix: str = "t", partitions: int = 1, **configs: str) -> str:
        """Create a topic on both brokers and wait until it is served; config names are written with underscores."""
        name = self.fresh(suffix)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(partitions)
                    ],
                    configs=[
                        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=30_000,
        )
        self.ask(request, 7)
        self.wait_served(name, partitions)
        return name

    def wait_served(self, topic: str, partitions: int = 1) -> None:
        """Wait until both brokers serve every partition of a topic; then its id is known by its name."""
        for side in self.sides:
            connection = side.connection("helper")
            wait_until(lambda c=connection: _is_served(c, topic, partitions))  # type: ignore[misc]
            topic_id = topic_metadata(connection, topic).topic_id
            side.ids[topic] = topic_id
            side.names.learn("id", topic_id, f"(id of {topic})")

    def wait_gone(self, topic: str) -> None:
        """Wait until neither broker knows a topic."""
        for side in self.sides:
            connection = side.connection("helper")
            wait_until(lambda c=connection: topic_metadata(c, topic).error_code == 3)  # type: ignore[misc]

    # --- asking -----------------------------------------------------------------------------------

    def sweep(self, *requests: Build, versions: Iterable[int] | None = None, connection: str = "") -> None:
        """Ask requests at every version that is served and can say them."""
        for request in requests:
            api_key = (request if isinstance(request, Message) else request(self.barnabas)).API_KEY
            handler = load_handler(api_key)
            for version in versions or range(handler.min_version, handler.max_version + 1):
                with contextlib.suppress(ValueError):
                    self.ask(request, version, connection=connection)

    def ask(self, request: Build, version: int, *, connection: str = "") -> tuple[Any, Any]:
        """Ask both and compare; returns Kafka's and our answer (None where the connection was closed).

        Errors: ValueError when the version cannot say this.
        """
        return self.receive(self.send(request, version, connection=connection), connection=connection)

    def send(self, request: Build, version: int, *, connection: str = "") -> "Sent":
        """Send a request to both and return at once; `receive` compares the answers."""
        built = [request if isinstance(request, Message) else request(side) for side in self.sides]
        for message in built:
            codec.encode(message, version)
        for side, message in zip(self.sides, built, strict=True):
            with contextlib.suppress(OSError):
                side.connection(connection).send(message, version)
        text = as_text(plain(built[1], version, self.barnabas.names))
        self.requests[built[1].API_KEY].add(f"v{version} {text}")
        return Sent(built[1].API_KEY, version, text, request)

    def receive(self, sent: "Sent", *, connection: str = "") -> tuple[Any, Any]:
        """Compare the answers to the oldest unanswered request of a connection; as `ask`."""
        while True:
            found = self._compare(sent.api_key, sent.version, sent.text, *self._receive(sent, connection))
            unexpected = any(finding.known is None for finding in found)
            if not unexpected or sent.api_key not in READ_ONLY or self._patience_s <= 0:
                break
            time.sleep(POLL_S)  # Real time: of the patience that all questions share
            self._patience_s -= POLL_S
            self.send(sent.request, sent.version, connection=connection)
        self.findings += found
        if self.kafka.last is not None and self.barnabas.last is not None:
            self.answered.add((sent.api_key, sent.version))
        return self.kafka.last, self.barnabas.last

    def _receive(self, sent: "Sent", connection: str) -> Iterator[Any]:
        for side in self.sides:
            try:
                side.last = side.connection(connection).receive()
            except TimeoutError:
                side.last = None
                side.drop(connection)
                yield SILENT
            except (ConnectionClosed, OSError):
                side.last = None
                side.drop(connection)
                yield CLOSED
            except (ProtocolError, ValueError):
                side.last = None
                side.drop(connection)
                yield UNDECODABLE
            else:
                yield plain(side.last, sent.version, side.names)

    def settle(self, request: Build, version: int, error_code: int) -> None:
        """Ask both until each answers with an error code, not counting or comparing."""
        self.settle_with(request, version, lambda answer: answer.error_code == error_code)

    def settle_with(self, request: Build, version: int, settled: Callable[[Any], bool]) -> None:
        """Ask both until each gives an answer that is right, not counting or comparing."""
        for side in self.sides:
            built = request if isinstance(request, Message) else request(side)
            wait_until(lambda: settled(side.connection().ask(built, version)))  # noqa: B023

    def send_unanswered(self, request: Build, version: int) -> None:
        """Send what is not answered (Produce with acks=0), then look whether the connection is still served."""
        for side in self.sides:
            message = request if isinstance(request, Message) else request(side)
            with contextlib.suppress(OSError):
                side.connection().send(message, version, answered=False)
        text = as_text(plain(message, version, side.names))
        self.requests[message.API_KEY].add(f"v{version} {text}")
        self.ask(ApiVersionsRequest(), 0)

    def ask_raw(self, api_key: int, version: int, body: bytes, *, answer_version: int | None = None) -> None:
        """Send a body as it is behind a right header; answers are compared decoded, or as closed connections."""
        header = headers.request_header(api_key, version, 1, "differential")
        self.ask_frame(header + body, api_key, version if answer_version is None else answer_version)

    def ask_frame(self, frame: bytes, api_key: int, answer_version: int) -> None:
        """Send one frame on connections of its own and compare what comes back."""
        answers: list[Any] = []
        for side in self.sides:
            side.drop("raw")
            connection = side.connection("raw")
            try:
                connection.send_frame(frame)
                answer = connection.receive_frame()
                _, position = headers.parse_response_header(answer, api_key, answer_version)
                message = codec.decode(messages.api(api_key).response_class, answer_version, answer, position)
                answers.append(plain(message, answer_version, side.names))
            except TimeoutError:
                answers.append(SILENT)
            except (ConnectionClosed, OSError):
                answers.append(CLOSED)
            except ProtocolError:
                answers.append(UNDECODABLE)
            side.drop("raw")
        text = f"frame {frame.hex()}"
        self.requests[api_key].add(text)
        self.findings += self._compare(api_key, answer_version, text, *answers)

    def _compare(self, api_key: int, version: int, request: str, kafka: Any, barnabas: Any) -> list[Finding]:
        kafka_fails = '"error_code": -1' in as_text(kafka)
        found = [
            Finding(self.name, messages.API_NAMES[api_key], version, request, difference, kafka_fails)
            for difference in differences(kafka, barnabas)
        ]
        return [finding._replace(known=explain(finding)) for finding in found]


class Sent(NamedTuple):
    """A request that was sent."""

    api_key: int
    version: int
    text: str
    request: Build


def versions_of(api_key: int) -> Sequence[int]:
    """Every version served."""
    handler = load_handler(api_key)
    return range(handler.min_version, handler.max_version + 1)


def _is_served(connection: Connection, topic: str, partitions: int) -> bool:
    if len(topic_metadata(connection, topic).partitions) != partitions:
        return False
    response = connection.ask(fetch_request([(topic, index, 0) for index in range(partitions)]), 4)
    return all(part.error_code == 0 for each in response.responses for part in each.partitions)
