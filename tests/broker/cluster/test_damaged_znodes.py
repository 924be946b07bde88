"""Znodes that somebody deletes, empties or garbles in a real ZooKeeper: what can be rebuilt is, what cannot is told
once, and the rest goes on, in the broker that runs and in its next life."""

import logging
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from kazoo.client import KazooClient

from barnabas.testing import Broker
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tools.attack.hostile import ask, connect
from tools.foreign.zookeeper import ALONE, ZooKeeperServer
from tools.waiting import wait_until

pytestmark = pytest.mark.java

GARBAGE = {
    "empty": b"",
    "no JSON": b"{broken",
    "no object": b"[1]",
    "no fields": b"{}",
    "other types": b'{"version":"x","partitions":[],"leader":{},"config":7,"endpoints":3,"block_end":[],"id":1}',
    "no replicas": b'{"version":1,"partitions":{"0":[]}}',
    "no such topic": b'{"version":1,"partitions":[{"topic":"a b","partition":-1,"replicas":[]}]}',
    "numbers": b'{"version":1,"leader":1e400,"leader_epoch":99999999999,"isr":[99999999999],"controller_epoch":-1,'
    b'"partitions":{"0":[99999999999]},"config":{"retention.ms":"x"},"block_start":"x","block_end":"9e9","broker":1}',
}
IN_THE_GATE = ("empty", "no such topic", "numbers")
_chroots = count()


def garbage_of_each_tier() -> list[Any]:
    return [
        pytest.param(data, id=name, marks=[] if name in IN_THE_GATE else pytest.mark.full)
        for name, data in GARBAGE.items()
    ]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def chroot() -> str:
    return f"/damaged-{next(_chroots)}"


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.address)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def broker(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[Broker]:
    configs = {"zookeeper.connect": zookeeper.address + chroot, "offsets.topic.num.partitions": "1", **ALONE}
    with Broker(configs=configs) as broker:
        for name in ("t", "u"):
            broker.create_topic(name, configs={"retention.ms": 1 << 50}).produce("before")
        yield broker


def until_it_works(what: Any) -> Any:
    """Clients ask again while the controller finds its feet."""
    refusals: list[ApiError] = []

    def attempt() -> list[Any] | None:
        try:
            return [what()]
        except ApiError as refusal:
            refusals.append(refusal)
            return None

    return wait_until(attempt, lambda: f"no refusal, such as {refusals[-1]}")[0]


def producer_id(broker: Broker) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answers: list[InitProducerIdResponse] = []

    def is_answered() -> bool:
        with connect(broker.bootstrap_servers) as connection:
            answers.append(ask(connection, request, 2, InitProducerIdResponse))
        return answers[-1].error_code == 0

    wait_until(is_answered, lambda: f"a producer id instead of error {answers[-1].error_code}")
    return answers[-1].producer_id


def the_rest_goes_on(broker: Broker, name: str) -> None:
    """Topics are created, written to and deleted."""

    def create() -> None:
        if name not in broker.topic_names():
            broker.create_topic(name)

    until_it_works(create)
    topic = broker.topic(name)
    until_it_works(lambda: topic.produce("new"))
    assert len(topic.records()) == 1
    until_it_works(lambda: broker.create_topic(f"{name}-short"))
    until_it_works(lambda: broker.delete_topic(f"{name}-short"))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    assert "Traceback" not in caplog.text
    told = errors(caplog)
    assert len(told) < 20, told


def settle(broker: Broker) -> None:
    """The controller has done all that was there to do."""
    until_it_works(lambda: broker.call(broker.server.controller.delete_topics(["no such topic"])))


def delete(client: KazooClient, path: str) -> None:
    """A znode and all below it, at once: the broker puts things back while somebody deletes one by one."""

    def below(parent: str) -> list[str]:
        return [path for name in client.get_children(parent) for path in below(f"{parent}/{name}")] + [parent]

    transaction = client.transaction()
    for found in below(path):
        transaction.delete(found)
    assert all(result is True for result in transaction.commit())


DELETED = [
    "",
    "/config",
    "/config/topics",
    "/config/changes",
    "/brokers",
    "/brokers/topics",
    "/brokers/topics/t",
    "/brokers/topics/t/partitions",
    "/brokers/topics/t/partitions/0/state",
    "/brokers/ids",
    "/controller",
    "/controller_epoch",
    "/admin",
    "/admin/delete_topics",
    "/cluster",
    "/feature",
    "/latest_producer_id_block",
    "/isr_change_notification",
]


@pytest.mark.slow
@pytest.mark.parametrize("path", DELETED)
def test_deleted_znodes_are_written_again(
    broker: Broker, client: KazooClient, chroot: str, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    first_id = producer_id(broker)
    delete(client, chroot + path)
    the_rest_goes_on(broker, "new")
    assert broker.call(retention_ms(broker, "t")) == 1 << 50
    broker.topic("u").produce("after")
    check_log(caplog)
    caplog.clear()
    if path not in ("", "/cluster"):  # that the cluster is another one is told at the start, in one line
        broker.restart()
        the_rest_goes_on(broker, "newer")
        assert producer_id(broker) > first_id
        assert len(broker.topic("new").records()) == 1
        if path not in ("/brokers", "/brokers/topics"):
            broker.topic("u").produce("later")
            assert len(broker.topic("u").records()) == 3
            assert broker.call(retention_ms(broker, "u")) == 1 << 50
        check_log(caplog)


async def retention_ms(broker: Broker, topic: str) -> int:
    return broker.server.replicas.partition_or_error(topic, 0).log.config.retention_ms


GARBLED = [
    "/controller",
    "/controller_epoch",
    "/brokers/ids/0",
    "/brokers/topics/t",
    "/brokers/topics/t/partitions/0/state",
    "/config/topics/t",
    "/config/brokers/<default>",
    "/config/changes/config_change_0000000000",
    "/feature",
    "/latest_producer_id_block",
    "/admin",
    "/admin/delete_topics",
    "/admin/delete_topics/t",
    "/admin/preferred_replica_election",
    "/admin/reassign_partitions",
]


@pytest.mark.slow
@pytest.mark.parametrize("garbage", garbage_of_each_tier())
@pytest.mark.parametrize("path", GARBLED)
def test_garbled_znodes_are_written_again(
    broker: Broker, client: KazooClient, chroot: str, caplog: pytest.LogCaptureFixture, path: str, garbage: bytes
) -> None:
    first_id = producer_id(broker)
    path = path.replace("/ids/0", f"/ids/{broker.server.node_id}")
    if client.exists(chroot + path):
        client.set(chroot + path, garbage)
    else:
        client.create(chroot + path, garbage)
    is_deletion = path == "/admin/delete_topics/t"
    client.create(f"{chroot}/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequence=True)
    client.create(
        f"{chroot}/config/changes/config_change_", b'{"version":2,"entity_path":"brokers/<default>"}', sequence=True
    )
    the_rest_goes_on(broker, "new")
    # As after a broken connection: everything is read again.
    client.delete(chroot + "/controller")
    the_rest_goes_on(broker, "newer")
    broker.topic("u").produce("after")
    if not is_deletion:
        until_it_works(lambda: broker.topic("t").produce("after"))
        without_overrides = ("empty", "no fields", "no replicas", "no such topic")  # which counts
        is_well_formed = garbage in [GARBAGE[name] for name in without_overrides]
        assert is_well_formed or broker.call(retention_ms(broker, "t")) in (-1, 1 << 50)
    check_log(caplog)
    caplog.clear()
    if client.exists(chroot + path) and client.get(chroot + path)[0] != garbage:
        client.set(chroot + path, garbage)
    broker.restart()
    the_rest_goes_on(broker, "newest")
    broker.topic("u").produce("later")
    assert len(broker.topic("u").records()) == 3
    if not path.endswith("block"):
        assert producer_id(broker) > first_id
    if path != "/brokers/topics/t" and not is_deletion:
        until_it_works(lambda: broker.topic("t").produce("later"))
        assert len(broker.topic("t").records()) == 3
    check_log(caplog)


NAMES = {"a space": "a b", "a letter": "\xfc", "a newline": "a\u2028b", "250": "x" * 250, "255": "x" * 255}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_topic_that_is_named_as_none_can_be(
    broker: Broker, client: KazooClient, chroot: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    payload = f'{{"version":3,"partitions":{{"0":[{broker.server.node_id}]}}}}'.encode()
    topic = f"{chroot}/brokers/topics/{name}"
    for path, data in ((topic, payload), (f"{chroot}/admin/delete_topics/{name}", b"")):
        client.create(path, data)

    def told() -> int:
        return sum(f"topic {name} is left out" in line for line in errors(caplog))

    for start, new in enumerate(("new", "newer"), 1):
        the_rest_goes_on(broker, new)
        assert name not in broker.topic_names()
        assert broker.server.controller.left_out_count == 1
        assert told() == start
        broker.restart()
    client.delete(topic)
    the_rest_goes_on(broker, "newest")
    assert broker.server.controller.left_out_count == 0
    check_log(caplog)


@pytest.mark.slow
def test_an_unreachable_registered_broker_delays_no_other(
    broker: Broker, client: KazooClient, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    silent = (
        b'{"version":5,"host":"127.0.0.1","port":1,"endpoints":["PLAINTEXT://127.0.0.1:1"],"jmx_port":-1,'
        b'"timestamp":"0","listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"features":{}}'
    )

    def told() -> int:
        return sum("broker 7 does not receive requests" in line for line in errors(caplog))

    client.create(f"{chroot}/brokers/ids/7", silent, ephemeral=True)
    topic = broker.topic("t")
    until_it_works(lambda: topic.produce("during"))
    wait_until(told, lambda: f"a line about broker 7, after a few tries, beside {errors(caplog)}")
    client.delete(chroot + "/controller")  # everything is read again, as after a lost connection
    settle(broker)
    until_it_works(lambda: topic.produce("after"))
    assert told() <= 2, errors(caplog)  # once by each life of the controller
    client.delete(f"{chroot}/brokers/ids/7")
    # It would get the new topic's partition.
    wait_until(lambda: 7 not in broker.server.controller.cluster.brokers, "broker 7 is gone")
    the_rest_goes_on(broker, "newest")
    check_log(caplog)
