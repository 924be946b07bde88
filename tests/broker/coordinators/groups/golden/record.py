"""Records `offsets.log` and `offsets.json` anew: `python -m tests.broker.coordinators.groups.golden.record`.

A real Apache Kafka 4.3.0 with one partition of `__consumer_offsets` serves every kind of group that leaves records
there: members that came and went, static members, commits with metadata, with a retention of their own, in
transactions; a deleted group; a group of the new protocol, whose records we skip. `offsets.log` is Kafka's first
segment of that partition, `offsets.json` what Kafka's admin answers about the groups.
"""

import json
import shutil
import socket
import struct
import threading
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.wire import headers
from barnabas.wire.codec import encode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tools.foreign.kafka import KafkaServer

FOLDER = Path(__file__).parent
GROUPS = ("members", "static", "simple", "retention", "transactions", "next-generation")


def main() -> None:
    overrides = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    with KafkaServer(overrides=overrides) as kafka:
        servers = kafka.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result()
        commit_as_member(servers, "members", {})
        commit_as_member(servers, "gone", {})
        commit_without_group(servers)
        commit_with_retention(servers)
        commit_in_transactions(servers)
        commit_as_member(servers, "next-generation", {"group.protocol": "consumer"})
        static = commit_as_member(servers, "static", {"group.instance.id": "instance-1"}, leave=False)
        admin.delete_consumer_groups(["gone"])["gone"].result()
        (FOLDER / "offsets.json").write_text(json.dumps(ask(admin), indent=2, sort_keys=True) + "\n")
        kafka.stop()
        shutil.copy(kafka.log_dir / "__consumer_offsets-0" / f"{0:020}.log", FOLDER / "offsets.log")
        closing = threading.Thread(target=static.close, daemon=True)
        closing.start()
        closing.join(5)


def consumer(servers, group, settings):
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "client.id": "recorder",
            **settings,
        }
    )


def commit_as_member(servers, group, settings, *, leave=True):
    member = consumer(servers, group, settings)
    member.subscribe(["t"])
    while len(member.assignment()) < 2:
        member.poll(0.1)
    member.commit(offsets=[TopicPartition("t", 0, 5, metadata="five"), TopicPartition("t", 1, 6)], asynchronous=False)
    if leave:
        member.close()
    return member


def commit_without_group(servers):
    alone = consumer(servers, "simple", {})
    alone.assign([TopicPartition("t", 0)])
    alone.commit(offsets=[TopicPartition("t", 0, 7, metadata="ohne Gruppe: äöü")], asynchronous=False)
    alone.commit(offsets=[TopicPartition("t", 0, 8, metadata="ohne Gruppe: äöü")], asynchronous=False)
    alone.close()


def commit_with_retention(servers):
    """OffsetCommit v2 names its own retention; no current client speaks it."""
    partition = OffsetCommitRequestPartition(partition_index=1, committed_offset=9, committed_metadata="a day")
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id="retention", retention_time_ms=86_400_000, topics=[topic])
    frame = headers.request_header(8, 2, 1, "recorder") + encode(request, 2)
    host, port = servers.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        assert connection.recv(4096).endswith(b"\x00\x00\x00\x01\x00\x00")


def commit_in_transactions(servers):
    reader = consumer(servers, "transactions", {})
    reader.assign([TopicPartition("t", 0)])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "recorder"})
    producer.init_transactions()
    for offset, end in ((10, producer.commit_transaction), (11, producer.abort_transaction)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], reader.consumer_group_metadata())
        end()
    reader.close()


def ask(admin):
    """The groups as Kafka tells; without metadata, which this client writes and reads one byte too long."""
    answers = {}
    for group in GROUPS:
        description = admin.describe_consumer_groups([group])[group].result()
        offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
        answers[group] = {
            "state": str(description.state.name),
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "client_host": member.host,
                    "partitions": [part.partition for part in member.assignment.topic_partitions],
                }
                for member in description.members
            ],
            "offsets": sorted([part.topic, part.partition, part.offset] for part in offsets.topic_partitions),
        }
    return answers


if __name__ == "__main__":
    main()
