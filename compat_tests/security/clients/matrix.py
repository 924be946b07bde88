"""Logins of each client, by each mechanism, with and without TLS, of which something is right or wrong; and how each
client calls the error."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from compat_tests.security.clients.brokers import (
    ALLOWED,
    EXPIRED,
    GOOD,
    GROUP_PREFIX,
    NO_ACL,
    NOT_ALLOWED,
    OVERDUE,
    PASSWORD,
    PROTOCOLS,
    STRANGE,
    TOPIC,
    UNKNOWN,
    WRONG,
    WRONG_PASSWORD,
    Secured,
)
from compat_tests.security.clients.drivers.driver import Login
from tools.foreign.languages import find_node, go_program, node_modules
from tools.waiting import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[3]
DRIVERS: Final = Path(__file__).parent / "drivers"
KAFKAJS: Final = Path(__file__).parents[2] / "kafkajs_client"
DEADLINE_S: Final = 10.0
"""The time in which a producer, or a consumer, is to raise its error."""
CERTIFICATE: Final = "certificate"
TOKEN: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", TOKEN)
SITUATIONS: Final = (GOOD, WRONG, STRANGE, OVERDUE, NO_ACL)


@dataclass(frozen=True)
class Case:
    """A login. `mechanism` may be CERTIFICATE."""

    mechanism: str
    has_tls: bool
    situation: str

    @property
    def name(self) -> str:
        return f"{self.mechanism}, {'TLS' if self.has_tls else 'no TLS'}: {self.situation}"

    @property
    def is_refused(self) -> bool:
        """Whether the login fails."""
        return self.situation not in (GOOD, NO_ACL)

    @property
    def has_expired_broker(self) -> bool:
        """Whether the broker's certificate has expired, and not what the client shows."""
        return self.situation == OVERDUE and self.mechanism not in (CERTIFICATE, TOKEN)


def cases() -> list[Case]:
    """All. A password does not expire; over TLS, the broker's certificate does."""
    found = [
        Case(mechanism, has_tls, situation)
        for mechanism in MECHANISMS
        for has_tls in (False, True)
        for situation in SITUATIONS
        if situation != OVERDUE or has_tls or mechanism == TOKEN
    ]
    return found + [Case(CERTIFICATE, True, situation) for situation in SITUATIONS]


def login(case: Case, broker: Secured, deadline_s: float) -> Login:
    """The login of a case, with a group of its own."""
    listener = "SSL" if case.mechanism == CERTIFICATE else "SASL_SSL" if case.has_tls else "SASL_PLAINTEXT"
    if case.has_expired_broker:
        listener = EXPIRED
    is_certificate, is_token = case.mechanism == CERTIFICATE, case.mechanism == TOKEN
    return Login(
        servers=broker.addresses[listener],
        protocol=PROTOCOLS[listener],
        mechanism="" if is_certificate else case.mechanism,
        username={STRANGE: UNKNOWN, NO_ACL: NOT_ALLOWED}.get(case.situation, ALLOWED),
        password=WRONG_PASSWORD if case.situation == WRONG else PASSWORD,
        token=broker.identities.tokens[case.situation] if is_token else "",
        ca=broker.identities.ca,
        certificate=broker.identities.certificates[case.situation] if is_certificate else "",
        topic=TOPIC,
        group=GROUP_PREFIX + secrets.token_hex(6),
        deadline_s=deadline_s,
    )


@dataclass(frozen=True)
class Client:
    """A client: `start` returns the command of its driver and what its environment has besides. That installs or builds
    what it needs."""

    title: str
    start: Callable[[], tuple[Sequence[str | Path], Mapping[str, str]]]
    deadline_s: float = DEADLINE_S
    mechanisms: Sequence[str] = (*MECHANISMS, CERTIFICATE)


class Driver:
    """A driver's process."""

    def __init__(self, client: Client) -> None:
        command, environment = client.start()
        self._title = client.title
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed where this ends
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def ask(self, login: Login) -> dict[str, str]:
        """The outcomes of the producer and the consumer. Raises: AssertionError if there is none."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps(asdict(login)) + "\n")
        asked.flush()
        ready, _, _ = select.select([answers], [], [], 3 * PATIENCE_S)
        answer = answers.readline() if ready else ""
        if not answer:
            self._complaints.seek(0)
            raise AssertionError(f"the driver of {self._title} does not answer:\n{self._complaints.read()[-5000:]}")
        outcomes: dict[str, str] = json.loads(answer)
        return outcomes


def play(client: Client, broker: Secured, wanted: Iterable[Case]) -> Iterator[tuple[Case, dict[str, str]]]:
    """The outcomes of the producer and of the consumer in each case that the client is able to do."""
    with Driver(client) as driver:
        for case in wanted:
            if case.mechanism not in client.mechanisms:
                continue
            outcomes = driver.ask(login(case, broker, client.deadline_s if case.is_refused else PATIENCE_S))
            if case.is_refused:
                broker.forgive()
            yield case, outcomes


def clients() -> dict[str, Client]:
    """All that can be driven, by name."""
    found = [
        _in_python("confluent_kafka", "confluent-kafka"),
        # Debian's has no HTTP, by which kcat would get tokens.
        _in_python("kcat", "kcat", mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", CERTIFICATE)),
        _in_python("aiokafka", "aiokafka"),
        # Real time: it tries again until its deadline, whatever the error is.
        _in_python("kafka_python", "kafka-python", deadline_s=1.0),
        _in_python("java", "Java"),
        Client("kafkajs", _node),
        Client("franz-go", lambda: ([go_program(DRIVERS / "franz_go")], {})),
        Client("sarama", lambda: ([go_program(DRIVERS / "sarama")], {})),
    ]
    return {client.title: client for client in found}


def _in_python(name: str, title: str, **more: Any) -> Client:
    command = [sys.executable, DRIVERS / f"drive_{name}.py"]
    return Client(title, lambda: (command, {"PYTHONPATH": str(ROOT)}), **more)


def _node() -> tuple[Sequence[str | Path], Mapping[str, str]]:
    environment = {"NODE_PATH": str(node_modules(KAFKAJS)), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return [find_node(), DRIVERS / "drive_kafkajs.js"], environment
