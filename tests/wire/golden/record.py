"""Records the request frames of real clients: `python tests/wire/golden/record.py CLIENT...` writes CLIENT.txt.

CLIENT is aiokafka, confluent-kafka, kafka-python or java (kafka-clients 4.3.0 through py4j, from the cache folder).
Each talks to a broker that knows one empty topic and says yes to everything, produces one record and reads as a
group. The first frame of each API and version is kept: its name, version, and bytes in hexadecimal.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import barnabas.wire.messages as messages
from barnabas.wire.codec import decode, encode
from barnabas.wire.headers import parse_request_header, response_header
from barnabas.wire.messages import (
    api_versions,
    fetch,
    find_coordinator,
    join_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    sync_group,
)

FOLDER = Path(__file__).parent
TOPIC = "golden"
TOPIC_ID = bytes(range(16))
SERVED = {
    0: (0, 13), 1: (4, 17), 2: (1, 9), 3: (0, 13), 8: (2, 9), 9: (1, 9), 10: (0, 5), 11: (0, 9), 12: (0, 4), 13: (0, 5),
    14: (0, 5), 18: (0, 4), 19: (2, 7), 22: (0, 5), 23: (2, 4), 60: (0, 1),
}  # fmt: skip


class YesBroker:
    """Answers every request with success, and remembers the frames."""

    def __init__(self) -> None:
        self.port = 0
        self.frames: dict[tuple[str, int], bytes] = {}

    async def serve(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await server.serve_forever()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                header = parse_request_header(frame)
                api = messages.api(header.api_key)
                self.frames.setdefault((api.name, header.api_version), frame)
                request = decode(api.request_class, header.api_version, frame, header.body_position)
                answer = getattr(self, f"answer_{header.api_key}", None)
                response = answer(request) if answer else api.response_class()
                if header.api_key == 1:
                    await asyncio.sleep(0.05)
                body = encode(response, header.api_version)
                head = response_header(header.api_key, header.api_version, header.correlation_id)
                writer.write((len(head) + len(body)).to_bytes(4) + head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer_0(self, request: Any) -> Any:
        def partitions(topic: Any) -> list[Any]:
            return [produce.PartitionProduceResponse(index=partition.index) for partition in topic.partition_data]

        topics = [
            produce.TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=partitions(topic)
            )
            for topic in request.topic_data
        ]
        return produce.ProduceResponse(responses=topics)

    def answer_1(self, request: Any) -> Any:
        topics = [
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[fetch.PartitionData(partition_index=p.partition, records=b"") for p in topic.partitions],
            )
            for topic in request.topics
        ]
        return fetch.FetchResponse(responses=topics)

    def answer_2(self, request: Any) -> Any:
        def partitions(topic: Any) -> list[Any]:
            return [
                list_offsets.ListOffsetsPartitionResponse(partition_index=p.partition_index, offset=0)
                for p in topic.partitions
            ]

        topics = [
            list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=partitions(topic))
            for topic in request.topics
        ]
        return list_offsets.ListOffsetsResponse(topics=topics)

    def answer_3(self, request: Any) -> Any:
        partition = metadata.MetadataResponsePartition(leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1])
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            cluster_id="golden-cluster",
            controller_id=1,
            topics=[metadata.MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
        )

    def answer_8(self, request: Any) -> Any:
        def partitions(topic: Any) -> list[Any]:
            return [
                offset_commit.OffsetCommitResponsePartition(partition_index=p.partition_index) for p in topic.partitions
            ]

        topics = [
            offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=partitions(topic))
            for topic in request.topics
        ]
        return offset_commit.OffsetCommitResponse(topics=topics)

    def answer_9(self, request: Any) -> Any:
        def one(topic_class: Any, partition_class: Any, topics: Any) -> list[Any]:
            return [
                topic_class(
                    name=topic.name,
                    partitions=[
                        partition_class(partition_index=index, committed_offset=-1) for index in topic.partition_indexes
                    ],
                )
                for topic in topics or ()
            ]

        kinds: tuple[Any, Any] = (offset_fetch.OffsetFetchResponseTopics, offset_fetch.OffsetFetchResponsePartitions)
        groups = [
            offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, topics=one(*kinds, group.topics))
            for group in request.groups
        ]
        kinds = (offset_fetch.OffsetFetchResponseTopic, offset_fetch.OffsetFetchResponsePartition)
        return offset_fetch.OffsetFetchResponse(topics=one(*kinds, request.topics), groups=groups)

    def answer_10(self, request: Any) -> Any:
        where: dict[str, Any] = {"node_id": 1, "host": "127.0.0.1", "port": self.port}
        coordinators = [find_coordinator.Coordinator(key=key, **where) for key in request.coordinator_keys]
        if coordinators:
            return find_coordinator.FindCoordinatorResponse(coordinators=coordinators)
        return find_coordinator.FindCoordinatorResponse(**where)

    def answer_11(self, request: Any) -> Any:
        member = join_group.JoinGroupResponseMember(member_id="m", metadata=request.protocols[0].metadata)
        return join_group.JoinGroupResponse(
            generation_id=1,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader="m",
            member_id="m",
            members=[member],
        )

    def answer_14(self, request: Any) -> Any:
        assignment = request.assignments[0].assignment if request.assignments else b""
        return sync_group.SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        )

    def answer_18(self, request: Any) -> Any:
        ranges = [api_versions.ApiVersion(api_key=key, min_version=a, max_version=b) for key, (a, b) in SERVED.items()]
        return api_versions.ApiVersionsResponse(api_keys=ranges)

    def answer_22(self, request: Any) -> Any:
        return messages.api(22).response_class(producer_id=7, producer_epoch=0)  # type: ignore[call-arg]


def run_kafka_python(server: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=server)
    producer.send(TOPIC, b"value", b"key", headers=[("h", b"1")]).get(10)
    producer.close()
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=server, group_id="group", heartbeat_interval_ms=300)
    consumer.poll(timeout_ms=3000)
    consumer.commit()
    consumer.close()


def run_aiokafka(server: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def both() -> None:
        async with AIOKafkaProducer(bootstrap_servers=server) as producer:
            await producer.send_and_wait(TOPIC, b"value", b"key", headers=[("h", b"1")])
        options = {"group_id": "group", "heartbeat_interval_ms": 300, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(TOPIC, bootstrap_servers=server, **options) as consumer:
            await consumer.getmany(timeout_ms=2000)
            await consumer.commit()

    asyncio.run(both())


def run_confluent_kafka(server: str) -> None:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": server, "enable.idempotence": True})
    producer.produce(TOPIC, b"value", b"key", headers=[("h", b"1")])
    producer.flush(10)
    consumer = Consumer({"bootstrap.servers": server, "group.id": "group", "heartbeat.interval.ms": 300})
    consumer.subscribe([TOPIC])
    consumer.poll(3)
    consumer.close()


def run_java(server: str) -> None:
    import pyspark
    from py4j.java_gateway import JavaGateway

    spark_jars = Path(pyspark.__file__).parent / "jars"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas"
    libraries = [path for path in spark_jars.glob("*.jar") if path.name.startswith(("jackson-", "slf4j-api"))]
    gateway = JavaGateway.launch_gateway(
        classpath=os.pathsep.join(map(str, [cache / "kafka-clients-4.3.0.jar", *libraries])),
        jarpath=str(next(spark_jars.glob("py4j*.jar"))),
        javaopts=["-Xmx256m"],
        die_on_exit=True,
    )
    java = gateway.jvm
    common = {"bootstrap.servers": server}
    strings = "org.apache.kafka.common.serialization.String"
    clients = java.org.apache.kafka.clients

    def properties(**values: str) -> Any:
        result = java.java.util.Properties()
        for key, value in (common | {name.replace("_", "."): value for name, value in values.items()}).items():
            result.setProperty(key, value)
        return result

    producer = clients.producer.KafkaProducer(
        properties(key_serializer=strings + "Serializer", value_serializer=strings + "Serializer")
    )
    producer.send(clients.producer.ProducerRecord(TOPIC, "key", "value")).get()
    producer.close()
    consumer = clients.consumer.KafkaConsumer(
        properties(
            group_id="group",
            heartbeat_interval_ms="300",
            auto_offset_reset="earliest",
            key_deserializer=strings + "Deserializer",
            value_deserializer=strings + "Deserializer",
        )
    )
    consumer.subscribe(java.java.util.List.of(TOPIC))
    for _ in range(6):
        consumer.poll(java.java.time.Duration.ofMillis(500))
    consumer.commitSync()
    consumer.close()
    gateway.shutdown()


CLIENTS: dict[str, Callable[[str], None]] = {
    "aiokafka": run_aiokafka,
    "confluent-kafka": run_confluent_kafka,
    "java": run_java,
    "kafka-python": run_kafka_python,
}


def main() -> None:
    for client in sys.argv[1:] or CLIENTS:
        broker, started = YesBroker(), threading.Event()
        threading.Thread(target=asyncio.run, args=(broker.serve(started),), daemon=True).start()
        started.wait(10)
        CLIENTS[client](f"127.0.0.1:{broker.port}")
        lines = [f"{name} {version} {frame.hex()}\n" for (name, version), frame in sorted(broker.frames.items())]
        (FOLDER / f"{client}.txt").write_text("".join(lines))
        print(client, [line.rsplit(" ", 1)[0] for line in lines])


if __name__ == "__main__":
    main()
