"""The topics that coordinators keep their records in."""

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.testing import Broker


def test_groups_and_transactions_work_when_clients_have_all_partitions() -> None:
    with Broker(configs={"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}) as broker:
        controller = broker.server.controller
        controller.settings = controller.settings._replace(partitions_max=10)
        broker.create_topic("t", partitions=10)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        consumer.close()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("t", b"x")
        producer.commit_transaction(20)
        assert len(broker.topic("t").records()) == 1
