"""The page /metrics: a broker's figures (`figures`) in Prometheus's text formats. It is rendered in a thread, because a
broker with many partitions fills megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import barnabas
from barnabas.broker.http.figures import (
    TOPICS_MAX,
    ControllerFigures,
    LoginFigures,
    PartitionFigures,
    PeerFigures,
    ReplicationFigures,
    Snapshot,
)
from barnabas.broker.observability.request_metrics import DURATION_BOUNDS_NS


class MetricsPage(Collector):
    """Renders snapshots, with the process's own figures (CPU, memory, descriptors)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._snapshot: Snapshot | None = None
        self._registry.register(self)

    def render(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the newest format that the Accept header allows. One call at a time."""
        self._snapshot = snapshot
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """The metrics of the snapshot's broker, and then of the process."""
        self._snapshot = snapshot
        yield from self.collect()
        yield from ProcessCollector(registry=None).collect()

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        if snapshot is None:  # the registry calls this once when the collector is registered
            return
        yield from _broker_metrics(snapshot)
        yield from _api_metrics(snapshot)
        yield from _topic_metrics(snapshot)
        yield from _partition_metrics(snapshot.partitions)
        yield from _replication_metrics(snapshot.replication)
        yield from _controller_metrics(snapshot.controller)
        yield from _peer_metrics(snapshot.peers)
        yield from _login_metrics(snapshot.logins)
        yield from _group_metrics(snapshot)
        yield from _quota_metrics(snapshot)
        yield from _set_aside_metrics(snapshot)


def _broker_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "barnabas_info", "1; the labels say which broker this is.", labels=["version", "node_id", "cluster_id"]
    )
    info.add_metric([barnabas.__version__, str(snapshot.node_id), snapshot.cluster_id], 1)
    yield info
    yield GaugeMetricFamily("barnabas_ready", "Whether clients are accepted.", value=int(snapshot.is_ready))
    yield GaugeMetricFamily("barnabas_connections", "Open client connections.", value=snapshot.connection_count)
    yield CounterMetricFamily(
        "barnabas_tls_failed_handshakes",
        "Handshakes of TLS that failed, on all listeners but HTTP's.",
        value=snapshot.failed_tls_handshakes,
    )
    yield GaugeMetricFamily(
        "barnabas_event_loop_lag_seconds",
        "How late the event loop ran its last periodic timer: what every request waits at least.",
        value=snapshot.event_loop_lag_seconds,
    )


def _api_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "barnabas_request_duration_seconds",
        "Time from a request's decoding to its encoded reply (Kafka's TotalTimeMs).",
        labels=["api"],
    )
    bytes_in = CounterMetricFamily("barnabas_request_bytes", "Bytes of request frames.", labels=["api"])
    bytes_out = CounterMetricFamily("barnabas_response_bytes", "Bytes of response frames.", labels=["api"])
    requests = CounterMetricFamily("barnabas_requests", "Requests served (Kafka's RequestsPerSec).", labels=["api"])
    bounds = [*(str(bound / 1e9) for bound in DURATION_BOUNDS_NS), "+Inf"]
    errors = CounterMetricFamily(
        "barnabas_request_errors",
        "Errors in responses, one for each entry that has one (Kafka's ErrorsPerSec, without NONE). A request whose"
        " connection was closed because of a mistake in the broker counts as UNKNOWN_SERVER_ERROR.",
        labels=["api", "error"],
    )
    for name, error, count in snapshot.errors:
        errors.add_metric([name, error], count)
    for api in snapshot.apis:
        requests.add_metric([api.name], api.count)
        bytes_in.add_metric([api.name], api.bytes_in)
        bytes_out.add_metric([api.name], api.bytes_out)
        buckets = list(zip(bounds, map(float, accumulate(api.buckets)), strict=True))
        durations.add_metric([api.name], buckets, sum_value=api.duration_ns / 1e9)
    yield from (requests, errors, durations, bytes_in, bytes_out)


def _topic_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Topics' counters, with Kafka's names in their descriptions (BrokerTopicMetrics)."""
    messages_in = CounterMetricFamily(
        "barnabas_topic_messages_in",
        "Records appended to a topic, markers of transactions among them (Kafka's MessagesInPerSec).",
        labels=["topic"],
    )
    bytes_in = CounterMetricFamily(
        "barnabas_topic_bytes_in", "Bytes of batches appended to a topic (Kafka's BytesInPerSec).", labels=["topic"]
    )
    bytes_out = CounterMetricFamily(
        "barnabas_topic_bytes_out",
        "Bytes of batches returned to fetches (Kafka's BytesOutPerSec).",
        labels=["topic"],
    )
    messages_out = CounterMetricFamily(
        "barnabas_topic_messages_out",
        "Records returned to fetches, counted by offsets: records that compaction removed count, too.",
        labels=["topic"],
    )
    for topic in snapshot.topics:
        messages_out.add_metric([topic.name], topic.messages_out)
        messages_in.add_metric([topic.name], topic.messages_in)
        bytes_in.add_metric([topic.name], topic.bytes_in)
        bytes_out.add_metric([topic.name], topic.bytes_out)
    yield from (messages_in, messages_out, bytes_in, bytes_out)
    yield GaugeMetricFamily(
        "barnabas_topics_left_out",
        f"Topics without counters of their own on this page: those beyond the first {TOPICS_MAX:,}.",
        value=snapshot.topics_left_out,
    )


def _partition_metrics(partitions: tuple[PartitionFigures, ...]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "barnabas_partitions", "Replicas on this broker (Kafka's PartitionCount).", value=len(partitions)
    )
    leaders = sum(partition.is_leader for partition in partitions)
    yield GaugeMetricFamily(
        "barnabas_leader_partitions", "Partitions that this broker leads (Kafka's LeaderCount).", value=leaders
    )
    labels = ["topic", "partition"]
    size = GaugeMetricFamily(
        "barnabas_log_size_bytes", "Bytes of a partition's segments (Kafka's Size).", labels=labels
    )
    start = GaugeMetricFamily(
        "barnabas_log_start_offset", "First offset that can be read (Kafka's LogStartOffset).", labels=labels
    )
    end = GaugeMetricFamily(
        "barnabas_log_end_offset", "Offset that the next record gets (Kafka's LogEndOffset).", labels=labels
    )
    committed = GaugeMetricFamily("barnabas_high_watermark", "First offset that consumers do not see.", labels=labels)
    for partition in partitions:
        names = [partition.topic, str(partition.partition)]
        size.add_metric(names, partition.size_bytes)
        start.add_metric(names, partition.log_start_offset)
        end.add_metric(names, partition.log_end_offset)
        committed.add_metric(names, partition.high_watermark)
    yield from (size, start, end, committed)


def _replication_metrics(figures: ReplicationFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "barnabas_under_replicated_partitions",
        "Partitions that this broker leads and that have replicas out of sync (Kafka's UnderReplicatedPartitions).",
        value=figures.under_replicated,
    )
    yield GaugeMetricFamily(
        "barnabas_at_min_isr_partitions",
        "Partitions that this broker leads and others follow with just as many replicas in sync as"
        " min.insync.replicas: none of them may fail (Kafka's AtMinIsrPartitionCount).",
        value=figures.at_min_isr,
    )
    yield GaugeMetricFamily(
        "barnabas_under_min_isr_partitions",
        "Partitions with fewer replicas in sync than min.insync.replicas, which refuse records with acks=all"
        " (Kafka's UnderMinIsrPartitionCount).",
        value=figures.under_min_isr,
    )
    for name, meaning, value in (
        (
            "isr_expands",
            "How often replicas joined an ISR (Kafka's IsrExpandsPerSec).",
            figures.isr_expands,
        ),
        ("isr_shrinks", "How often replicas left an ISR (Kafka's IsrShrinksPerSec).", figures.isr_shrinks),
        (
            "failed_isr_updates",
            "Changes of in-sync replicas that the controller did not store (Kafka's FailedIsrUpdatesPerSec).",
            figures.failed_isr_updates,
        ),
        (
            "replication_bytes_in",
            "Bytes that this broker has fetched from leaders and appended (Kafka's ReplicationBytesInPerSec).",
            figures.fetched_bytes,
        ),
    ):
        yield CounterMetricFamily(f"barnabas_{name}", meaning, value=value)
    yield GaugeMetricFamily(
        "barnabas_replica_max_lag",
        "The largest number of committed records that a replica of this broker lacks (Kafka's MaxLag of the"
        " ReplicaFetcherManager).",
        value=figures.max_lag,
    )
    yield GaugeMetricFamily(
        "barnabas_replica_failed_partitions",
        "Partitions that this broker follows but does not fetch until the next command of the controller: there is"
        " a newer leader, or the log has failed (Kafka's FailedPartitionsCount).",
        value=figures.not_fetched,
    )


def _controller_metrics(figures: ControllerFigures) -> Iterator[Metric]:
    for name, meaning, value in (
        (
            "controller_active",
            "1 on the broker that is the controller; 1 in all of a cluster (Kafka's ActiveControllerCount).",
            int(figures.is_active),
        ),
        ("controller_epoch", "Controller epoch of this broker's last election; 0 before the first.", figures.epoch),
        (
            "controller_queue_length",
            "Events that wait for this broker's controller (Kafka's EventQueueSize).",
            figures.queue_length,
        ),
        (
            "offline_partitions",
            "Partitions without a leader; 0 on brokers that are not the controller (Kafka's OfflinePartitionsCount).",
            figures.offline_partitions,
        ),
        (
            "controller_left_out_topics",
            "Topics that the controller leaves out because of a damaged znode or an invalid name; the log says"
            " why. 0 on brokers that are not the controller.",
            figures.left_out_topics,
        ),
    ):
        yield GaugeMetricFamily(f"barnabas_{name}", meaning, value=value)
    yield SummaryMetricFamily(
        "barnabas_controller_event_duration_seconds",
        "Duration of the events of this broker's controller, with writes to the metadata store, in whole"
        " milliseconds (Kafka's RateAndTimeMs, of all events together).",
        count_value=figures.event_count,
        sum_value=figures.event_ms / 1000,
    )


def _peer_metrics(peers: tuple[PeerFigures, ...]) -> Iterator[Metric]:
    labels = ["broker", "purpose"]
    sent = CounterMetricFamily(
        "barnabas_peer_requests",
        "Requests to another broker, by what they are for: fetchers, the controller, markers and so on.",
        labels=labels,
    )
    waiting = GaugeMetricFamily(
        "barnabas_peer_requests_waiting", "Requests to another broker without a response yet.", labels=labels
    )
    for peer in peers:
        names = [str(peer.broker_id), peer.purpose]
        sent.add_metric(names, peer.sent_count)
        waiting.add_metric(names, peer.waiting_count)
    yield from (sent, waiting)


def _login_metrics(logins: tuple[LoginFigures, ...]) -> Iterator[Metric]:
    labels = ["listener", "result"]
    first = CounterMetricFamily(
        "barnabas_authentications",
        "Logins of SASL (Kafka's successful-authentication-total and failed-authentication-total).",
        labels=labels,
    )
    again = CounterMetricFamily(
        "barnabas_reauthentications",
        "Re-authentications of SASL (Kafka's successful-reauthentication-total and failed-reauthentication-total).",
        labels=labels,
    )
    for figures in logins:
        metric = again if figures.is_again else first
        metric.add_metric([figures.listener, "success" if figures.succeeded else "failure"], figures.count)
    yield from (first, again)


def _group_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    high_watermarks = {(figures.topic, figures.partition): figures.high_watermark for figures in snapshot.partitions}
    members = GaugeMetricFamily("barnabas_group_members", "Members of a consumer group.", labels=["group", "state"])
    labels = ["group", "topic", "partition"]
    offsets = GaugeMetricFamily("barnabas_group_offset", "Committed offset of a group.", labels=labels)
    lag = GaugeMetricFamily("barnabas_group_lag", "Records that a group has not committed yet.", labels=labels)
    for group in snapshot.groups:
        members.add_metric([group.name, group.state], group.member_count)
        for topic, partition, offset in group.offsets:
            names = [group.name, topic, str(partition)]
            offsets.add_metric(names, offset)
            # Known only if the partition is hosted by this broker.
            high_watermark = high_watermarks.get((topic, partition))
            if high_watermark is not None:
                lag.add_metric(names, max(0, high_watermark - offset))
    yield from (members, offsets, lag)
    yield GaugeMetricFamily(
        "barnabas_groups_left_out", "Groups that would make this page too long.", value=snapshot.groups_left_out
    )


def _quota_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    throttles = CounterMetricFamily(
        "barnabas_quota_throttles",
        "Responses with a throttle time, and connections that were not served, by the quota that was exceeded most:"
        " produce, fetch, request, controller-mutation or connection.",
        labels=["quota"],
    )
    throttle_seconds = CounterMetricFamily(
        "barnabas_quota_throttle_seconds",
        "The sum of these throttle times (Kafka's throttle-time is their average).",
        labels=["quota"],
    )
    clients = GaugeMetricFamily(
        "barnabas_quota_clients",
        "Users, client ids, pairs of them or addresses that a quota applies to and that were active in the last hour.",
        labels=["quota"],
    )
    for each in snapshot.quotas:
        throttles.add_metric([each.quota], each.throttle_count)
        throttle_seconds.add_metric([each.quota], each.throttle_ms / 1000)
        clients.add_metric([each.quota], each.client_count)
    yield throttles
    yield throttle_seconds
    yield clients


def _set_aside_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ["activity"]
    members = GaugeMetricFamily(
        "barnabas_set_aside", "Logs, groups and others that upkeep leaves out after a failure.", labels=labels
    )
    failures = CounterMetricFamily("barnabas_upkeep_failures", "Failures of upkeep.", labels=labels)
    for aside in snapshot.set_aside:
        members.add_metric([aside.activity], aside.count)
        failures.add_metric([aside.activity], aside.failures)
    labels = ["directory"]
    count = GaugeMetricFamily(
        "barnabas_uncleanable_partitions",
        "Logs that compaction leaves out (Kafka's uncleanable-partitions-count).",
        labels=labels,
    )
    size = GaugeMetricFamily(
        "barnabas_uncleanable_bytes", "Bytes of these logs (Kafka's uncleanable-bytes).", labels=labels
    )
    for uncleanable in snapshot.uncleanable:
        count.add_metric([uncleanable.directory], uncleanable.count)
        size.add_metric([uncleanable.directory], uncleanable.size_bytes)
    yield from (members, failures, count, size)
    free = GaugeMetricFamily(
        "barnabas_log_directory_free_bytes", "Free bytes of the file system of a log directory.", labels=labels
    )
    full = GaugeMetricFamily(
        "barnabas_log_directory_full",
        "1 while it takes no records from clients for lack of room (barnabas.disk.reserve.bytes), else 0.",
        labels=labels,
    )
    for directory in snapshot.directories:
        free.add_metric([directory.directory], directory.free_bytes)
        full.add_metric([directory.directory], directory.is_full)
    yield from (free, full)
    refused = CounterMetricFamily(
        "barnabas_refused_for_memory", "Refusals of coordinators for lack of memory.", labels=["coordinator"]
    )
    for coordinator, number in snapshot.refused_for_memory:
        refused.add_metric([coordinator], number)
    yield refused
    yield CounterMetricFamily(
        "barnabas_unforeseen_errors",
        "Entries of requests that were refused because of a mistake in the broker.",
        value=snapshot.unforeseen_errors,
    )
