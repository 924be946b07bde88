"""Java's consumer of the new protocol (`group.protocol=consumer`) with partitions of its own choice.

It commits by topic id, in OffsetCommit and OffsetFetch 10. Its group membership is not served (KIP-848).
"""

from typing import Any

from compat_tests.java_tools.kafka_tools import of_4_3_only
from tools.jvm.shared import SharedJvm


@of_4_3_only
def test_the_new_consumer_commits_and_finds_its_offsets(
    jvm: SharedJvm, tools: Any, cluster: Any, topic: str, group: str, produce: Any
) -> None:
    produce(topic, [b"one", b"two", b"three"])
    java = jvm.java
    partition = java.org.apache.kafka.common.TopicPartition(topic, 0)
    partitions = java.java.util.List.of(partition)

    def consumer() -> Any:
        properties = java.java.util.Properties()
        for key, value in {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }.items():
            properties.put(key, value)
        deserializer = java.org.apache.kafka.common.serialization.StringDeserializer()
        made = java.org.apache.kafka.clients.consumer.KafkaConsumer(properties, deserializer, deserializer)
        made.assign(partitions)
        return made

    first = consumer()
    offset = java.org.apache.kafka.clients.consumer.OffsetAndMetadata(2, "so far")
    first.poll(java.java.time.Duration.ofSeconds(10))
    first.commitSync(java.java.util.Map.of(partition, offset))
    first.close()

    second = consumer()
    committed = second.committed(java.java.util.Set.of(partition)).get(partition)
    assert (committed.offset(), committed.metadata()) == (2, "so far")
    assert second.position(partition) == 2
    second.close()
    (row,) = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group))
    assert (row["CURRENT-OFFSET"], row["LAG"]) == ("2", "1")
