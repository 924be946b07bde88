"""Barnabas refuses what Apache Kafka refuses, with the same errors in the same fields: the requests of
`tests/broker/handlers/authorization_cases.py`, and those that leave something out of a response.

In Kafka's broker each request has a user of its own, who may do everything that the request needs but for one check. To
Barnabas they come with an authorizer of the test that allows the same.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

import pytest

from barnabas.broker.handlers import apis_between_brokers
from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.testing import Broker
from barnabas.wire import messages
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tests.broker.handlers.authorization_cases import CASES, Case, Names
from tests.broker.handlers.authorization_world import World, errors_of, others
from tests.support.fake_authorizer import FakeAuthorizer, Triple
from tools.attack.hostile import ask, connect
from tools.attack.requests import simple_offset_commit
from tools.attack.stage import TOPIC, Stage
from tools.foreign.kafka import KafkaServer
from tools.processes.server import free_ports
from tools.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.full]

GROUP_ID: Final = "offsets"
TRANSACTIONAL_ID: Final = "payments"
LITERAL, ALLOW, ANY = 3, 3, 1
"""Kafka's PatternType.LITERAL and AclPermissionType.ALLOW; any resource, operation and permission."""
WITH_NOTHING: Final = "nobody"
BETWEEN_BROKERS: Final = {messages.API_NAMES[key] for key in apis_between_brokers()}
TRIED: Final = [
    (case, check)
    for case in CASES
    for check in case.checks
    if case.api not in BETWEEN_BROKERS  # which Kafka 4 does not have, or serves to controllers alone
]
STRICTER: Final = {("ListOffsets", "ClusterAction on Cluster")}
"""The checks that Kafka does not make (docs/deviations/security.md)."""
LISTS: Final[Mapping[str, tuple[Message, int]]] = {
    "groups": (ListGroupsRequest(), 4),
    "transactions": (ListTransactionsRequest(), 1),
    "topics": (MetadataRequest(topics=None), 9),
    "partitions": (DescribeTopicPartitionsRequest(), 0),
}


class Kafka(NamedTuple):
    """Apache Kafka with its authorizer: a super user on one listener, and users with passwords on the other."""

    names: Names
    users_address: str

    def ask(self, user: str, request: Message, version: int) -> Any:
        """The response to a user."""
        with connect(self.users_address) as connection:
            _log_in(connection, user)
            return ask(connection, request, version, messages.api(request.API_KEY).response_class)


def _log_in(connection: socket.socket, user: str) -> None:
    token = plain.encode(Credentials(user, user))
    for request, version in (
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=token), 2),
    ):
        answer = ask(connection, request, version, messages.api(request.API_KEY).response_class)
        assert answer.error_code == 0, answer


def _user(case: Case, check: str) -> str:
    return f"user{TRIED.index((case, check))}"


def _names_of(names: Names, case: Case, check: str) -> Names:
    """The names, with a topic of this request where it must be a new one."""
    return names._replace(topic=f"new-{_user(case, check)}") if case.names_new_topic else names


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    client_port, controller_port, users_port = free_ports(3)
    users = [WITH_NOTHING, *(_user(*tried) for tried in TRIED)]
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    passwords = " ".join(f'user_{user}="{user}"' for user in users)
    overrides = {
        "listeners": f"PLAINTEXT://127.0.0.1:{client_port},USERS://127.0.0.1:{users_port},"
        f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port},USERS://127.0.0.1:{users_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f"{login}{passwords};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    server = KafkaServer(overrides=overrides, ports=(client_port, controller_port))
    with server, closing(Stage(server.bootstrap_servers)) as stage:
        names = Names(TOPIC, stage.topic_id, GROUP_ID, TRANSACTIONAL_ID)
        start = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000)
        wait_until(lambda: stage.ask(start, 3).error_code == 0, "the transaction coordinator is loaded")
        stage.ask(simple_offset_commit(stage, 8), 8)
        _allow(stage, {_user(*tried): others(*tried, _names_of(names, *tried)) for tried in TRIED})
        yield Kafka(names, f"127.0.0.1:{users_port}")


def _allow(stage: Stage, allowed: Mapping[str, set[Triple]]) -> None:
    """Create the ACLs of the users; returns when the broker's authorizer has them."""
    creations = [
        AclCreation(
            resource_type=resource_type,
            resource_name=name,
            resource_pattern_type=LITERAL,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=ALLOW,
        )
        for user, triples in allowed.items()
        for operation, resource_type, name in triples
    ]
    created = stage.ask(CreateAclsRequest(creations=creations), 3)
    assert not errors_of(created)
    everything = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )

    def count() -> int:
        return sum(len(resource.acls) for resource in stage.ask(everything, 3).resources)

    wait_until(lambda: count() == len(creations), "the ACLs are in force")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Broker() as broker, closing(Stage(broker.bootstrap_servers)) as stage:
        yield World(broker, stage, Names(TOPIC, stage.topic_id, GROUP_ID, TRANSACTIONAL_ID))


def one_refused(*, is_stricter: bool) -> pytest.MarkDecorator:
    """Cases with one check that is refused."""
    return pytest.mark.parametrize(
        ("case", "check"),
        [
            pytest.param(case, check, id=f"{case.api}-{case.version}-{check.replace(' ', '')}")
            for case, check in TRIED
            if ((case.api, check) in STRICTER) is is_stricter
        ],
    )


def both(kafka: Kafka, world: World, case: Case, check: str) -> tuple[Any, Any]:
    """The responses of Kafka and of Barnabas."""
    world.commit_offset()
    theirs = kafka.ask(_user(case, check), case.request(_names_of(kafka.names, case, check)), case.version)
    names = _names_of(world.names, case, check)
    authorizer = FakeAuthorizer(others(case, check, names))
    return theirs, world.ask(case.request(names), case.version, authorizer, of_broker=case.of_broker)


@one_refused(is_stricter=False)
def test_refusals_are_kafkas(kafka: Kafka, world: World, case: Case, check: str) -> None:
    theirs, ours = both(kafka, world, case, check)
    names = _names_of(world.names, case, check), _names_of(kafka.names, case, check)
    assert shown(ours, names[0]) == shown(theirs, names[1])


@one_refused(is_stricter=True)
def test_kafka_does_not_refuse(kafka: Kafka, world: World, case: Case, check: str) -> None:
    theirs, ours = both(kafka, world, case, check)
    assert errors_of(ours)
    assert not errors_of(theirs)


@pytest.mark.parametrize("kind", LISTS)
def test_lists_leave_out_what_kafkas_do(kafka: Kafka, world: World, kind: str) -> None:
    request, version = LISTS[kind]
    world.stage.member()
    world.stage.producer()
    sizes = [
        len(getattr(response, field))
        for response in (kafka.ask(WITH_NOTHING, request, version), world.ask(request, version, FakeAuthorizer()))
        for field in ("groups", "transaction_states", "topics")
        if hasattr(response, field)
    ]
    assert sizes == [0, 0]


def shown(response: Message, names: Names) -> Any:
    """A response as plain values, without what differs between brokers: times, ids, addresses, the words of
    messages."""
    hidden: dict[str, Callable[[Any], Any]] = {
        "throttle_time_ms": lambda _: 0,
        "topic_id": lambda topic_id: topic_id == names.topic_id,
        "brokers": lambda _: [],
        "cluster_id": lambda _: "",
        "controller_id": lambda _: 0,
        "error_message": lambda message: message is None,
    }

    def plain(value: object) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, Message):
            fields = {field.name: getattr(value, field.name) for field in value.FIELDS}
            return {name: hidden[name](inner) if name in hidden else plain(inner) for name, inner in fields.items()}
        return value

    return plain(response)
