"""`__consumer_offsets` gets more partitions: from the next start on groups are looked for elsewhere."""

from collections import Counter

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from barnabas.testing import Broker
from tools.waiting import PATIENCE_S


def commit(broker: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def test_a_group_has_one_series_in_the_metrics() -> None:
    """As it is now, not as it was where nobody looks for it any more: /metrics would have one series twice."""
    groups = [f"g{number}" for number in range(6)]
    with Broker(configs={"offsets.topic.num.partitions": "2"}) as broker:
        broker.create_topic("t")
        for group in groups:
            commit(broker, group, 1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for expanded in admin.create_partitions([NewPartitions("__consumer_offsets", 5)]).values():
            expanded.result(PATIENCE_S)
        broker.restart()
        for group in groups:
            commit(broker, group, 2)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        listed = admin.list_consumer_groups().result(PATIENCE_S).valid
        assert sorted(found.group_id for found in listed) == groups
        summaries = broker.server.groups.summaries()[0]
        assert Counter(summary.group_id for summary in summaries) == Counter(groups)
        assert {offset for summary in summaries for _, _, offset in summary.offsets} == {2}
