"""A change of a cluster returns when all its brokers have the news; news that a broker has not received is reported."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.broker.server import Broker as Server
from barnabas.testing import Broker, Cluster
from barnabas.testing.contents.settled import runtime, unsettled
from barnabas.wire.names import TopicId

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_topic("t", 3)
        running.coordinator(group="g")
        running.wait_heard()
        yield running


def open_end(cluster: Cluster) -> str | None:
    async def find() -> str | None:
        return unsettled(cluster.live_servers())

    return cluster.call(find())


@pytest.mark.parametrize(
    "act",
    [
        lambda cluster, number: cluster.brokers[number].kill(),
        lambda cluster, number: cluster.brokers[number].stop(),
        lambda cluster, number: cluster.expire_session(number),
        lambda cluster, number: cluster.faults.move_leader("t", number),
        lambda cluster, number: cluster.create_topic(f"of-{number}", 3),
        lambda cluster, number: cluster.restart(),
    ],
    ids=["kill", "stop", "expire_session", "move_leader", "create_topic", "restart"],
)
def test_changes_are_known_to_all_brokers(cluster: Cluster, act: Callable[[Cluster, int], object]) -> None:
    for number in range(3):  # the controller, and others
        act(cluster, number)
        assert open_end(cluster) is None
        if not cluster.brokers[number].is_running:
            cluster.brokers[number].start()
            assert open_end(cluster) is None


def forget_broker(server: Server) -> None:
    server.metadata._brokers.pop(next(other for other in server.metadata.broker_ids() if other != server.node_id))


def forget_topic(server: Server) -> None:
    server.metadata._topics.pop("t")


def know_another_leader(server: Server) -> None:
    known = server.metadata._topics["t"].partitions
    known[0] = replace(known[0], leader=-1)


def know_another_isr(server: Server) -> None:
    known = server.metadata._topics["t"].partitions
    known[0] = replace(known[0], isr=known[0].isr[:2])


def know_a_topic_that_is_gone(server: Server) -> None:
    known = server.metadata._topics["t"]
    server.metadata._topics["gone"] = replace(known, name="gone", topic_id=TopicId(b"g" * 16))


def read_the_log(server: Server) -> None:
    for slot in runtime(server, GROUP_METADATA_TOPIC)._slots.values():
        slot.runner = None


def have_an_older_role(server: Server) -> None:
    server.replicas.partition_or_error("t", 0).state.leader_epoch -= 1


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (forget_broker, r"broker \d knows brokers \[\d, \d\] and controller \d"),
        (forget_topic, r"broker \d does not know t"),
        (know_another_leader, r"t-0 at broker \d: leader -1, .* while the controller has leader \d"),
        (know_another_isr, r"t-0 at broker \d: leader \d, ISR \[\d, \d\], .* ISR \[\d, \d, \d\]"),
        (know_a_topic_that_is_gone, r"broker \d knows gone"),
        (read_the_log, rf"broker \d still reads {GROUP_METADATA_TOPIC}-\d"),
        (have_an_older_role, r"broker \d does not know the leader of t-0"),
    ],
)
def test_a_change_unknown_to_one_broker_is_reported(harm: Callable[[Server], None], told: str) -> None:
    with Cluster() as cluster:
        cluster.create_topic("t")
        cluster.coordinator(group="g")
        cluster.wait_heard()
        behind = next(number for number in range(3) if cluster.coordinator(group="g") == number)

        async def do_harm() -> None:
            harm(cluster.brokers[behind].server)

        cluster.call(do_harm())
        with pytest.raises(TimeoutError, match=rf"^not all brokers are up to date after 0\.01 s: {told}"):
            cluster.wait_heard(0.01)


def test_kills_and_starts_in_a_cut_do_not_wait_for_all_brokers() -> None:
    with Cluster() as cluster:
        cluster.create_topic("t")
        number = next(number for number in (1, 2, 0) if number != cluster.controller())
        paused = next(other for other in range(3) if other not in (number, cluster.controller()))
        with cluster.faults.pause(broker=paused):
            cluster.brokers[number].kill()
            assert cluster.brokers[paused].server.metadata.is_alive(number)
            assert open_end(cluster) is not None
        cluster.wait_heard()
        assert not cluster.brokers[paused].server.metadata.is_alive(number)


def test_a_lone_broker_has_heard_everything() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        broker.wait_heard(0)
