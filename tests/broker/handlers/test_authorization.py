"""What each API asks the authorizer, and what the response is when that refuses: the table of `authorization_cases.py`,
and the checks that leave something out of a response."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.configuration.tables.broker import RACK_AWARE_SELECTOR
from barnabas.broker.handlers import apis_between_brokers, served_apis
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session
from barnabas.broker.security.broker_secrets import BrokerSecretMechanism, RegisteredSecrets
from barnabas.broker.security.operations import CLUSTER_NAME, NOT_ASKED, Operation, ResourceType, bits
from barnabas.broker.security.sasl.listeners import Sasl, SaslListener
from barnabas.broker.security.sasl.plain import MECHANISM as PLAIN
from barnabas.clock import ManualClock
from barnabas.testing import Broker
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tests.broker.handlers.authorization_cases import CASES, KAFKA_BROKER_ID, Case, Names
from tests.broker.handlers.authorization_world import AUTHORIZATION_ERRORS, World, errors_of, look_up, others, triples
from tests.support.fake_authorizer import FakeAuthorizer, Triple
from tests.support.manual_timers import ManualTimers
from tools.attack.stage import TOPIC, Stage, produce
from tools.references import authorization
from tools.references.authorization import needs_of

WITHOUT_CASE: Final = {
    ("Metadata", "Describe on Cluster"),
    ("ListGroups", "Describe on Cluster or Describe on Group"),
    ("DescribeCluster", "Describe on Cluster"),
    ("DescribeTransactions", "Describe on Topic"),
    ("ListTransactions", "Describe on TransactionalId"),
    ("CreateDelegationToken", "CreateTokens on User"),
    ("DescribeDelegationToken", "Describe on DelegationToken or DescribeTokens on User"),
}
"""The checks that have tests of their own below, since nothing in the response is an error; those of delegation tokens,
which need a listener of SASL, are in `test_delegation_tokens.py`."""


def tried(*, is_tried: Callable[[Case, str], bool] = lambda _case, _check: True) -> list[Any]:
    """The checks of all cases."""
    return [
        pytest.param(case, check, id=f"{case.api}-{case.version}-{check.replace(' ', '')}")
        for case in CASES
        for check in case.checks
        if is_tried(case, check)
    ]


def names_secret_topic(case: Case, check: str) -> bool:
    return check.endswith("on Topic") and not (case.tells_existence or case.names_new_topic)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Broker() as broker:
        stage = Stage(broker.bootstrap_servers)
        names = Names(TOPIC, stage.topic_id, "offsets", stage.producer().transactional_id)
        yield World(broker, stage, names)
        stage.close()


@pytest.mark.parametrize(("case", "check"), tried())
def test_a_request_is_refused_without_one_of_the_operations_it_needs(world: World, case: Case, check: str) -> None:
    world.commit_offset()
    names = world.new_topic() if case.names_new_topic else world.names
    authorizer = FakeAuthorizer(others(case, check, names))
    response = world.ask(case.request(names), case.version, authorizer, of_broker=case.of_broker)
    assert errors_of(response) == {field: {case.error_of(check)} for field in case.checks[check]}


@pytest.mark.parametrize(("case", "check"), tried(is_tried=lambda case, _: not case.is_served_elsewhere))
def test_a_request_is_served_with_one_operation_of_each_check(world: World, case: Case, check: str) -> None:
    """Whatever else may be wrong with it."""
    for number in range(len(needs_of(check))):
        names = world.new_topic() if case.names_new_topic else world.names
        authorizer = FakeAuthorizer({triples(needs_of(check), names)[number], *others(case, check, names)})
        response = world.ask(case.request(names), case.version, authorizer, of_broker=case.of_broker)
        assert not set().union(*errors_of(response).values()) & AUTHORIZATION_ERRORS


@pytest.mark.parametrize(("case", "check"), tried(is_tried=names_secret_topic))
def test_a_refusal_does_not_tell_whether_the_topic_exists(world: World, case: Case, check: str) -> None:
    told = []
    for names in (world.names, world.names._replace(topic="absent7")):
        authorizer = FakeAuthorizer(others(case, check, names))
        response = world.ask(case.request(names), case.version, authorizer, of_broker=case.of_broker)
        told.append(repr(response).replace(names.topic, ""))
    assert len(TOPIC) == len("absent7")
    assert told[0] == told[1]


def test_each_check_of_a_handler_is_tried() -> None:
    """The headers of the handlers say the same as the table."""
    found: dict[tuple[str, str], set[str]] = {}
    for case in CASES:
        for check in case.checks:
            found.setdefault((case.api, check), set()).add(case.error_of(check).name)
    said = {
        (messages.API_NAMES[api.key], check.text.partition(" (")[0]): check.refusal
        for api in authorization.apis()
        for check in api.checks
    }
    assert set(found) | WITHOUT_CASE == set(said)
    for tried_check, errors in found.items():
        assert all(error in said[tried_check] for error in errors), tried_check


def test_each_handler_says_what_it_asks_or_why_not() -> None:
    found = {api.key: api for api in authorization.apis()}
    assert set(found) == {*served_apis(), *apis_between_brokers()}
    without = {messages.API_NAMES[key] for key, api in found.items() if not api.checks}
    assert without == {
        *("ApiVersions", "SaslHandshake", "SaslAuthenticate"),
        *("RenewDelegationToken", "ExpireDelegationToken"),
    }
    assert all(found[key].checks or found[key].reason for key in found)


# --- what is left out of responses ---------------------------------------------------------------

READ: Final = (Operation.READ, ResourceType.TOPIC, TOPIC)
DESCRIBE_CLUSTER: Final = (Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)


def describe(resource_type: ResourceType, name: str) -> Triple:
    return Operation.DESCRIBE, resource_type, name


def test_groups_that_a_client_may_not_describe_are_not_listed(world: World) -> None:
    def listed(*allowed: Triple) -> set[str]:
        response = world.ask(ListGroupsRequest(), 4, FakeAuthorizer(allowed))
        assert not errors_of(response)
        return {group.group_id for group in response.groups}

    world.commit_offset()
    other = world.stage.member().group_id
    assert listed() == set()
    assert listed(describe(ResourceType.GROUP, other)) == {other}
    assert {other, world.names.group_id} <= listed(DESCRIBE_CLUSTER)


@pytest.mark.parametrize("pattern", [None, ".*"])
def test_transactions_that_a_client_may_not_describe_are_not_listed(world: World, pattern: str | None) -> None:
    def listed(*allowed: Triple) -> set[str]:
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        response = world.ask(request, 2, FakeAuthorizer(allowed))
        return {found.transactional_id for found in response.transaction_states}

    name = world.names.transactional_id
    world.stage.producer()
    assert listed() == set()
    assert listed(describe(ResourceType.TRANSACTIONAL_ID, name)) == {name}


def test_topics_of_a_transaction_that_a_client_may_not_describe_are_left_out(world: World) -> None:
    name = world.stage.producer().transactional_id
    request = DescribeTransactionsRequest(transactional_ids=[name])
    for allowed, expected in ((set(), []), ({describe(ResourceType.TOPIC, TOPIC)}, [TOPIC])):
        authorizer = FakeAuthorizer({describe(ResourceType.TRANSACTIONAL_ID, name), *allowed})
        [state] = world.ask(request, 0, authorizer).transaction_states
        assert (state.error_code, [topic.topic for topic in state.topics]) == (ErrorCode.NONE, expected)


def test_all_topics_are_those_that_a_client_may_describe(world: World) -> None:
    authorizer = FakeAuthorizer({describe(ResourceType.TOPIC, TOPIC)})
    described = world.ask(DescribeTopicPartitionsRequest(), 0, authorizer)
    assert [(topic.name, topic.error_code) for topic in described.topics] == [(TOPIC, ErrorCode.NONE)]
    for version, request in ((0, MetadataRequest(topics=[])), (9, MetadataRequest(topics=None))):
        response = world.ask(request, version, authorizer)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [(TOPIC, ErrorCode.NONE)]
        assert response.brokers


def test_all_offsets_are_those_of_topics_that_a_client_may_describe(world: World) -> None:
    world.commit_offset()
    group = describe(ResourceType.GROUP, world.names.group_id)
    for version in (7, 8, 10):
        request = OffsetFetchRequest(group_id=world.names.group_id, topics=None)
        if version >= 8:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=world.names.group_id, topics=None)])
        for allowed, expected in (({group}, 0), ({group, describe(ResourceType.TOPIC, TOPIC)}, 1)):
            response = world.ask(request, version, FakeAuthorizer(allowed))
            assert not errors_of(response)
            topics = response.groups[0].topics if version >= 8 else response.topics
            assert len(topics) == expected


# --- one topic among others, and what is done ----------------------------------------------------


def test_an_id_is_no_secret_but_its_name_is(world: World) -> None:
    absent = bytes(range(16))
    topics = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (world.names.topic_id, absent)]
    response = world.ask(MetadataRequest(topics=topics), 12, FakeAuthorizer())
    told = {(topic.name, topic.topic_id, ErrorCode(topic.error_code)) for topic in response.topics}
    assert told == {
        (None, world.names.topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (None, absent, ErrorCode.UNKNOWN_TOPIC_ID),
    }


def test_a_topic_is_created_only_for_a_client_that_may(world: World) -> None:
    mine, yours = (world.new_topic().topic for _ in range(2))
    topics = [(Operation.DESCRIBE, mine), (Operation.DESCRIBE, yours), (Operation.CREATE, mine)]
    authorizer = FakeAuthorizer((operation, ResourceType.TOPIC, name) for operation, name in topics)
    created: list[str] = []
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in (mine, yours, "hidden")], allow_auto_topic_creation=True
    )
    world.ask(request, 9, authorizer, auto_topics=SimpleNamespace(create=created.extend))
    assert created == [mine]


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    ("allowed", "name_is_told", "is_deleted"),
    [
        ((), False, False),
        ((Operation.DESCRIBE,), True, False),
        ((Operation.DELETE, Operation.DESCRIBE), True, True),
        ((CLUSTER_NAME,), True, True),
    ],
)
def test_a_topic_is_deleted_only_for_a_client_that_may(
    world: World, allowed: tuple[Operation | str, ...], name_is_told: bool, is_deleted: bool, by_id: bool
) -> None:
    metadata = world.broker.server.services.metadata
    topic = world.broker.create_topic(world.new_topic().topic)
    asked = DeleteTopicState(name=topic.name)
    if by_id:
        asked = DeleteTopicState(name=None, topic_id=metadata.topic_id(topic.name))
    authorizer = FakeAuthorizer(
        (Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
        if isinstance(operation, str)
        else (operation, ResourceType.TOPIC, topic.name)
        for operation in allowed
    )
    [result] = world.ask(DeleteTopicsRequest(topics=[asked], timeout_ms=10_000), 6, authorizer).responses
    expected = ErrorCode.NONE if is_deleted else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert result.error_code == expected
    assert result.name == (topic.name if name_is_told or not by_id else None)
    assert (topic.name in metadata) == (not is_deleted)


def test_an_absent_topic_is_unknown_to_a_client_that_may_describe_it(world: World) -> None:
    name = world.new_topic().topic
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
    [result] = world.ask(request, 6, FakeAuthorizer({describe(ResourceType.TOPIC, name)})).responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_refused_topic_does_not_affect_the_others(world: World) -> None:
    other = world.broker.create_topic(world.new_topic().topic).name
    request = FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
            for name in (TOPIC, other)
        ],
    )
    response = world.ask(request, 12, FakeAuthorizer({READ}))
    found = {topic.topic: topic.partitions[0] for topic in response.responses}
    assert found[TOPIC].records
    assert (found[other].error_code, found[other].high_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)


def test_a_reader_in_a_rack_is_refused_as_others_are(world: World) -> None:
    config = SimpleNamespace(fetch_max_bytes=1 << 20, replica_selector_class=RACK_AWARE_SELECTOR)
    asked = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[asked])]
    request = FetchRequest(max_wait_ms=0, session_epoch=-1, topics=topics, rack_id="a")
    for allowed, error in (((), ErrorCode.TOPIC_AUTHORIZATION_FAILED), ((READ,), ErrorCode.NONE)):
        response = world.ask(request, 12, FakeAuthorizer(allowed), config=config)
        assert response.responses[0].partitions[0].error_code == error


def test_a_produce_request_without_a_response_is_refused_by_closing_the_connection(world: World) -> None:
    request = produce(world.stage.batch())
    request.acks = 0
    with pytest.raises(CloseConnection):
        world.ask(request, 9, FakeAuthorizer())


@pytest.mark.parametrize("position", [0, 1])
def test_one_transactional_batch_of_several_needs_the_transactional_id(world: World, position: int) -> None:
    """Wherever it is in the request (CVE-2018-17196)."""
    batches = [world.stage.batch(), world.stage.batch()]
    producer_id = world.stage.idempotent_producer()
    batches[position] = world.stage.batch(
        producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    data = [PartitionProduceData(index=index, records=records) for index, records in enumerate(batches)]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
        transactional_id=world.names.transactional_id,
    )
    response = world.ask(request, 9, FakeAuthorizer({(Operation.WRITE, ResourceType.TOPIC, TOPIC)}))
    errors = [partition.error_code for partition in response.responses[0].partition_responses]
    assert errors == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2


def test_each_topic_of_a_request_is_decided_once(world: World) -> None:
    authorizer = FakeAuthorizer()
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(2)]
    topics = [ListOffsetsTopic(name=name, partitions=partitions) for name in (TOPIC, "other", TOPIC)]
    world.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7, authorizer)
    assert authorizer.asked == [describe(ResourceType.TOPIC, name) for name in (TOPIC, "other")]


def test_a_session_does_not_read_on_when_the_client_may_no_longer(world: World) -> None:
    partition = world.broker.server.services.replicas.partition(TOPIC, 0)
    authorizer = FakeAuthorizer({READ})
    asked = FetchPartition(partition=0, partition_max_bytes=1 << 20, fetch_offset=partition.log.log_end_offset)
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=TOPIC, partitions=[asked])], session_epoch=0)
    session_id = world.ask(request, 12, authorizer).session_id

    def fetched(epoch: int) -> dict[str, set[ErrorCode]]:
        following = FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=epoch)
        return errors_of(world.ask(following, 12, authorizer))

    assert fetched(1) == fetched(2) == {}
    authorizer.allowed.clear()
    world.stage.ask(produce(world.stage.batch()), 9)
    error = {"responses.partitions.error_code": {ErrorCode.TOPIC_AUTHORIZATION_FAILED}}
    assert fetched(3) == fetched(4) == error
    authorizer.allowed.add(READ)
    assert fetched(5) == {}


def test_a_transaction_with_a_refused_topic_gets_no_partition(world: World) -> None:
    """Internal topics are refused without an authorizer, too (KafkaApis.handleAddPartitionsToTxnRequest)."""
    producer = world.stage.producer()
    names = world.names._replace(transactional_id=producer.transactional_id)
    allowed = triples(needs_of("Write on TransactionalId"), names) + triples(needs_of("Write on Topic"), names)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=[1]) for name in (TOPIC, "__consumer_offsets")
        ],
    )
    for authorizer in (None, FakeAuthorizer(allowed)):
        response = world.ask(request, 3, authorizer)
        assert {
            topic.name: topic.results_by_partition[0].partition_error_code
            for topic in response.results_by_topic_v3_and_below
        } == {
            TOPIC: ErrorCode.OPERATION_NOT_ATTEMPTED,
            "__consumer_offsets": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }


# --- brokers -------------------------------------------------------------------------------------


def test_a_broker_says_who_it_is_before_it_is_authorized(world: World) -> None:
    server, authorizer = world.broker.server, FakeAuthorizer()
    of_brokers = SaslListener({PLAIN: BrokerSecretMechanism(server.services.broker_secrets)})
    sasl = Sasl({server.config.listeners[0].name: of_brokers}, ManualClock(), ManualTimers())
    handshake = SaslHandshakeRequest(mechanism=PLAIN)
    assert world.ask(handshake, 1, authorizer, of_broker=True, sasl=sasl).error_code == ErrorCode.NONE
    assert not authorizer.asked


def test_a_client_does_not_become_a_broker_without_cluster_action(world: World) -> None:
    """The requests of a broker are not decided by the authorizer: nobody is one by its client id alone."""
    services = replace(
        world.broker.server.services,
        authorizer=FakeAuthorizer(),
        broker_secrets=RegisteredSecrets(1, lambda: {KAFKA_BROKER_ID: ""}, look_up),
    )
    session = Session(None, ListenerContext("PLAINTEXT", is_inter_broker=True), 1)
    context = RequestContext(services, session, 27, 1, 1, f"broker-{KAFKA_BROKER_ID}-test")
    assert not context.comes_from(KAFKA_BROKER_ID)
    assert not context.comes_from_some_broker()
    assert not context.comes_from_another_broker()
    assert not session.is_broker
    assert RequestContext(services, session, 27, 1, 1, None).authorizer is services.authorizer


# --- operations in responses (KIP-430) ------------------------------------------------------------


def test_operations_are_those_that_a_client_may_perform(world: World) -> None:
    names = world.names
    read, write = ((each, ResourceType.TOPIC, TOPIC) for each in (Operation.READ, Operation.WRITE))
    delete = (Operation.DELETE, ResourceType.GROUP, names.group_id)
    group = describe(ResourceType.GROUP, names.group_id)
    world.commit_offset()
    authorizer = FakeAuthorizer({describe(ResourceType.TOPIC, TOPIC), read, write, delete, group})
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=TOPIC), MetadataRequestTopic(name="hidden")],
        include_topic_authorized_operations=True,
    )
    response = world.ask(request, 9, authorizer)
    assert {topic.name: topic.topic_authorized_operations for topic in response.topics} == {
        TOPIC: bits((Operation.READ, Operation.WRITE, Operation.DESCRIBE)),
        "hidden": NOT_ASKED,
    }
    described = world.ask(DescribeTopicPartitionsRequest(), 0, authorizer)
    assert described.topics[0].topic_authorized_operations == response.topics[0].topic_authorized_operations
    groups = DescribeGroupsRequest(groups=[names.group_id], include_authorized_operations=True)
    [found] = world.ask(groups, 5, authorizer).groups
    assert found.authorized_operations == bits((Operation.DELETE, Operation.DESCRIBE))


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
        (MetadataRequest(topics=[], include_cluster_authorized_operations=True), 9),
    ],
)
def test_operations_on_the_cluster(world: World, request_: Message, version: int) -> None:
    """None for a client that may not describe the cluster."""
    alter = (Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    action = (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert world.ask(request_, version, FakeAuthorizer({alter})).cluster_authorized_operations == 0
    response = world.ask(request_, version, FakeAuthorizer({alter, action, DESCRIBE_CLUSTER}))
    assert response.cluster_authorized_operations == bits(
        (Operation.ALTER, Operation.CLUSTER_ACTION, Operation.DESCRIBE)
    )
