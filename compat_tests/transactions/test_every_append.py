"""The broker dies at each append of a coordinator and at each marker, in turn: a transaction is there whole or not.

The real command ends itself as with `kill -9` when the n-th of them is in its log (`tools.soak.fatal_append`), for
n = 1, 2 and so on until it outlives what the client does. Then the same client goes on where it got no answer, or a new
one with its transactional id takes over.
"""

import signal
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from compat_tests.conftest import create_topic
from compat_tests.semantics.client import Connection, ConnectionClosed
from compat_tests.transactions.producer import (
    CLASSIC,
    WHILE_STARTING,
    TransactionalProducer,
    committed_values,
    retried,
)
from compat_tests.transactions.test_protocol import add_offsets, commit_offset, find_group_coordinator, stored_offset
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

PARTITIONS = 2
TOPIC = "t"
OUTCOMES = (True, False, True)
"""Of the client's transactions: committed or not. The first one commits an offset, too."""
APPENDS_MIN = 20
"""How many appends all of that takes, at least."""

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


class Died(Exception):
    """The broker died, and has been started again."""


class MortalBroker(BarnabasProcess):
    """The command, which may end at an append."""

    def start_to_die_at(self, append: int) -> None:
        self.module = f"tools.soak.fatal_append:{append}"
        self.start()

    def revive(self) -> None:
        """Wait for its death and start it without another one."""
        assert self.wait(PATIENCE_S) == -signal.SIGKILL, self.log_text()
        self.module = "barnabas"
        self.start()


class Client:
    """A transactional producer and its steps. When the broker dies, it repeats the step that was not answered, or
    (`gives_up`) leaves that to a successor: Died.
    """

    def __init__(self, broker: MortalBroker, transactional_id: str, protocol: int, *, gives_up: bool) -> None:
        self._broker = broker
        self._gives_up = gives_up
        self.producer = TransactionalProducer(Connection(broker.bootstrap_servers), transactional_id, protocol)
        self.producer.transient = WHILE_STARTING

    def step(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                work()
                return
            except (OSError, ConnectionClosed):
                self.producer.connection.close()
                self._broker.revive()
                if self._gives_up:
                    raise Died from None
                self.producer.connection = Connection(self._broker.bootstrap_servers)

    def init(self) -> None:
        def find_and_init() -> None:
            request = FindCoordinatorRequest(key_type=1, key=self.producer.transactional_id)
            retried(lambda: self.producer.connection.ask(request, 3))
            self.producer.init()

        self.step(find_and_init)

    def transaction(self, values: list[list[bytes]], offset: int | None, group: str, *, is_commit: bool) -> None:
        producer = self.producer
        for partition, found in enumerate(values):
            self.step(lambda p=partition, v=found: producer.send(TOPIC, *v, partition=p))
        if offset is not None:
            self.step(lambda: find_group_coordinator(producer.connection, group))
            if producer.protocol == CLASSIC:
                self.step(lambda: none(add_offsets(producer, group)))
            self.step(lambda: none(commit_offset(producer, group, TOPIC, offset)))
        self.step(producer.commit if is_commit else producer.abort)


def none(error: int) -> None:
    assert error == 0


class Script:
    """The script of a client, by itself or with a successor, and its expected outcome."""

    def __init__(self, broker: MortalBroker, name: str, protocol: int, *, gives_up: bool) -> None:
        self._broker = broker
        self._name = name
        self._protocol = protocol
        self._gives_up = gives_up
        self._decided: list[tuple[list[list[bytes]], int | None, bool | None]] = []
        """Values by partition, the offset, and whether they were committed; None: nobody told."""

    def run(self) -> None:
        client, attempts = None, count()
        try:
            for number, is_commit in enumerate(OUTCOMES):
                while True:
                    attempt = next(attempts)
                    values = [
                        [f"{self._name}-{attempt}-{each}-{partition}".encode() for each in range(2)]
                        for partition in range(PARTITIONS)
                    ]
                    offset = attempt + 1 if number == 0 else None
                    try:
                        if client is None:
                            client = Client(self._broker, self._name, self._protocol, gives_up=self._gives_up)
                            client.init()
                        client.transaction(values, offset, self._name, is_commit=is_commit)
                    except Died:
                        client = None
                        self._decided.append((values, offset, None))
                    else:
                        self._decided.append((values, offset, is_commit))
                        break
        finally:
            if client is not None:
                client.producer.connection.close()

    def check(self, before: list[list[bytes]]) -> list[list[bytes]]:
        """Everything is decided, and there whole or not; what committed readers see of each partition, which began with
        `before`.
        """
        with Connection(self._broker.bootstrap_servers) as connection:
            wait_until(lambda: self._state(connection).startswith("Complete"))
            found = [committed_values(connection, TOPIC, partition) for partition in range(PARTITIONS)]
            expected, expected_offset = [list(each) for each in before], -1
            for values, offset, is_commit in self._decided:
                if is_commit or (is_commit is None and values[0][0] in found[0]):
                    expected = [there + more for there, more in zip(expected, values, strict=True)]
                    expected_offset = expected_offset if offset is None else offset
            assert found == expected
            wait_until(lambda: stored_offset(connection, self._name, TOPIC, stable=True) == (expected_offset, 0))
        return found

    def _state(self, connection: Connection) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[self._name])
        return str(retried(lambda: connection.ask(request, 0).transaction_states[0]).transaction_state)


@pytest.fixture
def broker() -> Iterator[MortalBroker]:
    with MortalBroker(SETTINGS) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("gives_up", [False, True], ids=["same client", "successor"])
def test_a_transaction_is_whole_or_absent_after_any_kill(
    broker: MortalBroker, protocol: int, gives_up: bool, every: int
) -> None:
    create_topic(broker.bootstrap_servers, TOPIC, PARTITIONS, None)
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    # Not in the full size, client and successor take turns, and both leave out two of three.
    for append in count(1 + gives_up * every // 2, every):
        broker.kill()
        broker.start_to_die_at(append)
        script = Script(broker, f"{append}", protocol, gives_up=gives_up)
        script.run()
        found = script.check(found)
        if broker.module != "barnabas":
            break
    assert append > APPENDS_MIN
