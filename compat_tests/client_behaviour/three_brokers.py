"""The clients' behaviour when brokers of a cluster go, and their partitions and groups move, with real faults.

The topic is led by one broker, its group and its transactional id are coordinated by another, and a third is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.testing import Cluster, Hold
from compat_tests.client_behaviour.beside import AWAY_S, is_replicated, reassign, then
from compat_tests.client_behaviour.case import Case
from compat_tests.client_behaviour.drivers.driver import GROUP, LAST, TOPIC, TRANSACTIONAL_ID
from tools.waiting import wait_until

THE_THIRD, COORDINATOR, LEADER = range(3)
WAIT_S = 20.0

Act = Callable[[Cluster], object]


def three_brokers() -> Iterator[Case]:
    """All of it."""
    yield from _producing()
    yield from _consuming()
    yield from _committing()
    yield from _in_transactions()


def _case(title: str, workload: str, api: str, act: Act, **where: Any) -> Case:
    """Something is done to the cluster while a request is held."""
    return Case(
        "Three brokers", title, workload, api, _hold(api, **where), then(act), wait_s=WAIT_S, is_real=True, brokers=3
    )


def _producing() -> Iterator[Case]:
    api, idempotent = "Produce", "idempotent"
    yield _case("the leader is killed with a Produce on its way", idempotent, api, _kill_leader)
    yield _case(
        "the leader is killed before it answers, without idempotence", "produce", api, _kill_leader, after_work=True
    )
    yield _case(
        "the leader is killed before it answers, with idempotence", idempotent, api, _kill_leader, after_work=True
    )
    yield _case("the leader is stopped with a Produce on its way", idempotent, api, _stop_leader)
    yield _case("another leader is elected with a Produce on its way", idempotent, api, _move_leader)
    yield _case("the replicas move to other brokers with a Produce on its way", idempotent, api, _reassign)


def _consuming() -> Iterator[Case]:
    where = {"topic": TOPIC}
    yield _case("the leader is killed with a Fetch on its way", "consume", "Fetch", _kill_leader, **where)
    yield _case("the leader is killed after the first Fetch", "stay", "Fetch", _kill_and_write, after=1, **where)
    yield _case("another leader is elected with a Fetch on its way", "consume", "Fetch", _move_leader, **where)
    yield _case("the replicas move to other brokers with a Fetch on its way", "consume", "Fetch", _reassign, **where)


def _committing() -> Iterator[Case]:
    api = "OffsetCommit"
    yield _case("the group's coordinator is killed with a commit on its way", "commit", api, _kill_coordinator)
    yield _case("another coordinates the group with a commit on its way", "commit", api, _move_group)
    yield _case(
        "the group's coordinator is killed with a Heartbeat on its way",
        "stay",
        "Heartbeat",
        _kill_coordinator_and_write,
    )


def _in_transactions() -> Iterator[Case]:
    transaction, api = "transaction", "EndTxn"
    yield _case("the leader is killed with a transaction's Produce on its way", transaction, "Produce", _kill_leader)
    yield _case(
        "the transaction's coordinator is killed with an EndTxn on its way", transaction, api, _kill_coordinator
    )
    yield _case(
        "the transaction's coordinator is killed before it answers", transaction, api, _kill_coordinator,
        after_work=True,
    )  # fmt: skip
    yield _case("another coordinates the transaction with an EndTxn on its way", transaction, api, _move_transaction)
    yield _case(
        "the group's and the transaction's coordinator is killed with a TxnOffsetCommit on its way",
        "process", "TxnOffsetCommit", _kill_coordinator,
    )  # fmt: skip
    yield _case(
        "another coordinates the group with a TxnOffsetCommit on its way", "process", "TxnOffsetCommit", _move_group
    )


# --- to the cluster -------------------------------------------------------------------------------


def _hold(api: str, **where: Any) -> Callable[[Cluster], Hold]:
    def inject(cluster: Cluster) -> Hold:
        _take_places(cluster)
        return cluster.faults.hold(api, times=1, **where)

    return inject


def _take_places(cluster: Cluster) -> None:
    """Have everything led by whom the cases think that it is."""
    _have_coordinators(cluster)
    cluster.faults.move_leader(TOPIC, to=LEADER)
    cluster.faults.move_coordinator(group=GROUP, to=COORDINATOR)
    cluster.faults.move_coordinator(transactional_id=TRANSACTIONAL_ID, to=COORDINATOR)
    _have_coordinators(cluster)


def _have_coordinators(cluster: Cluster) -> None:
    """Return when coordinators answer. Who asks for one first has its topic made, which it reads before that."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}

    def is_coordinated() -> bool:
        member = Consumer({**servers, "group.id": GROUP})
        try:
            member.committed([TopicPartition(TOPIC, 0)])
        except KafkaException:
            return False
        finally:
            member.close()
        return True

    wait_until(is_coordinated)
    Producer({**servers, "transactional.id": "another"}).init_transactions()


def _kill_leader(cluster: Cluster) -> None:
    """Once what it has answered for on its own is at its followers, too."""
    leader = cluster.brokers[LEADER]
    wait_until(lambda: is_replicated(leader, TOPIC), "records at the followers")
    leader.kill()


def _kill_and_write(cluster: Cluster) -> None:
    _kill_leader(cluster)
    cluster.topic(TOPIC).produce(LAST)


def _stop_leader(cluster: Cluster) -> None:
    cluster.brokers[LEADER].stop()


def _kill_coordinator(cluster: Cluster) -> None:
    cluster.brokers[COORDINATOR].kill()


def _kill_coordinator_and_write(cluster: Cluster) -> None:
    _kill_coordinator(cluster)
    _have_coordinators(cluster)
    time.sleep(AWAY_S)  # Real time: what the client does by itself meanwhile is the subject
    cluster.topic(TOPIC).produce(LAST)


def _move_leader(cluster: Cluster) -> None:
    cluster.faults.move_leader(TOPIC, to=THE_THIRD)


def _move_group(cluster: Cluster) -> None:
    cluster.faults.move_coordinator(group=GROUP, to=THE_THIRD)


def _move_transaction(cluster: Cluster) -> None:
    cluster.faults.move_coordinator(transactional_id=TRANSACTIONAL_ID, to=THE_THIRD)


def _reassign(cluster: Cluster) -> None:
    """The leader has no replica any more."""
    reassign(cluster, TOPIC, [THE_THIRD, COORDINATOR])
    wait_until(lambda: cluster.leader(TOPIC) != LEADER)
