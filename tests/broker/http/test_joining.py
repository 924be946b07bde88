"""When a broker counts as joined, as the controller tells of its replicas."""

import asyncio

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.http.joining import Joining
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

BROKER = 2


class Started:
    """A broker that is told of topic `t` with replicas 1 and 2, led by 1 where nobody says otherwise."""

    def __init__(self) -> None:
        self.metadata = MetadataCache(BROKER)
        self.is_ready = True
        self.joining = Joining(self.metadata, BROKER, lambda: self.is_ready)

    def tell(self, *isrs: list[int], leader: int = 1) -> None:
        """The replicas in sync of each partition."""
        states = [
            UpdateMetadataPartitionState(partition_index=index, leader=leader, replicas=[1, 2], isr=isr)
            for index, isr in enumerate(isrs)
        ]
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=b"t" * 16, partition_states=states)
        asyncio.run(self.metadata.update(UpdateMetadataRequest(topic_states=[topic])))


def test_replicas_that_lag_after_joining_do_not_count() -> None:
    started = Started()
    started.tell([1], [1])
    started.joining.start()
    started.tell([1, 2], [1])
    started.tell([1, 2], [1, 2])
    started.tell([1], [1])
    assert started.joining.lacking() == 0


def test_all_have_to_be_in_sync_at_one_time() -> None:
    started = Started()
    started.tell([1], [1])
    started.joining.start()
    assert started.joining.lacking() == 2
    started.tell([1, 2], [1])
    assert started.joining.lacking() == 1
    started.tell([1], [1, 2])
    assert started.joining.lacking() == 1
    started.tell([1, 2], [1, 2])
    assert started.joining.lacking() == 0


def test_a_broker_does_not_join_before_it_is_ready() -> None:
    started = Started()
    started.is_ready = False
    started.tell([1, 2])
    started.joining.start()
    started.tell([1])
    started.is_ready = True
    assert started.joining.lacking() == 1


def test_a_broker_that_gets_ready_in_sync_has_joined() -> None:
    started = Started()
    started.is_ready = False
    started.tell([1, 2])
    started.joining.start()
    started.is_ready = True
    started.joining.look()
    started.tell([1])
    assert started.joining.lacking() == 0


def test_partitions_without_a_leader_do_not_count() -> None:
    started = Started()
    started.tell([1], leader=-1)
    assert started.joining.lacking() == 0
