"""The page /metrics: what the broker counted and what it knows about itself, in Prometheus's text formats.

A page is made in two steps: `take_snapshot` reads the broker inside its event loop (numbers and names only, no I/O),
`MetricsPage.render` turns them into text in a thread, because a broker with many partitions fills megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import barnabas
from barnabas.broker.observability.metrics import DURATION_BOUNDS_NS
from barnabas.wire.messages import API_NAMES

if TYPE_CHECKING:
    from barnabas.broker.observability.metrics import RequestMetrics
    from barnabas.broker.services import Services
    from barnabas.broker.upkeep.compaction import Compaction
    from barnabas.set_aside import SetAside


GROUPS_TEXT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the page, for groups and their offsets, whose number and names anybody chooses; those beyond it are counted."""


@dataclass(frozen=True, slots=True)
class ApiFigures:
    """One API's requests; `buckets` are not cumulative."""

    name: str
    count: int
    duration_ns: int
    bytes_in: int
    bytes_out: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One replica on this broker."""

    topic: str
    partition: int
    is_leader: bool
    size_bytes: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group that this broker coordinates; offsets are (topic, partition, committed offset)."""

    name: str
    state: str
    member_count: int
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class SetAsideFigures:
    """Of one activity of upkeep: who is set aside now, and how often somebody failed at it."""

    activity: str
    count: int
    failures: int


@dataclass(frozen=True, slots=True)
class UncleanableFigures:
    """The logs of a log directory that compaction has set aside."""

    directory: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on the page, read at one moment."""

    node_id: int
    cluster_id: str
    is_ready: bool
    connection_count: int
    event_loop_lag_seconds: float
    apis: tuple[ApiFigures, ...]
    partitions: tuple[PartitionFigures, ...]
    groups: tuple[GroupFigures, ...]
    groups_left_out: int
    unforeseen_errors: int
    refused_for_memory: tuple[tuple[str, int], ...]
    set_aside: tuple[SetAsideFigures, ...]
    uncleanable: tuple[UncleanableFigures, ...]


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of a broker that the page tells of; `activities` is the upkeep that may have set somebody aside."""

    services: Services
    requests: RequestMetrics
    compaction: Compaction
    activities: Sequence[SetAside[Any]]
    is_ready: Callable[[], bool]


def take_snapshot(sources: MetricSources) -> Snapshot:
    """Read a broker; call it inside its event loop."""
    services = sources.services
    groups, groups_left_out = services.groups.summaries(GROUPS_TEXT_BYTES_MAX)
    return Snapshot(
        node_id=services.node_id,
        cluster_id=services.cluster_id,
        is_ready=sources.is_ready(),
        connection_count=len(services.connections),
        event_loop_lag_seconds=sources.requests.event_loop_lag_seconds,
        apis=tuple(
            ApiFigures(
                API_NAMES.get(key, str(key)),
                api.count,
                api.duration_ns,
                api.bytes_in,
                api.bytes_out,
                tuple(api.buckets),
            )
            for key, api in sorted(sources.requests.apis.items())
        ),
        partitions=tuple(
            PartitionFigures(
                partition.topic,
                partition.index,
                partition.state.is_leader,
                partition.log.size_in_bytes,
                partition.log.log_start_offset,
                partition.log.high_watermark,
                partition.log.log_end_offset,
            )
            for partition in services.replicas.partitions()
        ),
        groups=tuple(
            GroupFigures(group.group_id, group.state.value, group.member_count, group.offsets) for group in groups
        ),
        groups_left_out=groups_left_out,
        unforeseen_errors=services.unforeseen.count,
        refused_for_memory=(
            ("groups", services.groups.refusals.count),
            ("transactions", services.transactions.refusals.count),
        ),
        set_aside=tuple(SetAsideFigures(aside.activity, len(aside), aside.failures) for aside in sources.activities),
        uncleanable=tuple(_uncleanable(sources)),
    )


def _uncleanable(sources: MetricSources) -> Iterator[UncleanableFigures]:
    logs = sources.compaction.set_aside.members
    for directory in map(str, sources.services.log_manager.directories):
        sizes = [log.size_in_bytes for log in logs if log.directory.rpartition("/")[0] == directory]
        yield UncleanableFigures(directory, len(sizes), sum(sizes))


class MetricsPage(Collector):
    """Renders snapshots; the process's own figures (CPU, memory, descriptors) come along."""

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

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        if snapshot is None:  # the registry asks once when the collector is registered
            return
        yield from _broker_metrics(snapshot)
        yield from _api_metrics(snapshot.apis)
        yield from _partition_metrics(snapshot.partitions)
        yield from _group_metrics(snapshot)
        yield from _set_aside_metrics(snapshot)


def _broker_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily("barnabas_info", "This broker.", labels=["version", "node_id", "cluster_id"])
    info.add_metric([barnabas.__version__, str(snapshot.node_id), snapshot.cluster_id], 1)
    yield info
    yield GaugeMetricFamily("barnabas_ready", "Whether clients are accepted.", value=int(snapshot.is_ready))
    yield GaugeMetricFamily("barnabas_connections", "Open client connections.", value=snapshot.connection_count)
    yield GaugeMetricFamily(
        "barnabas_event_loop_lag_seconds",
        "How late the event loop ran its last periodic timer: what every request waits at least.",
        value=snapshot.event_loop_lag_seconds,
    )


def _api_metrics(apis: tuple[ApiFigures, ...]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "barnabas_request_duration_seconds", "Time from a request's decoding to its encoded reply.", labels=["api"]
    )
    bytes_in = CounterMetricFamily("barnabas_request_bytes", "Bytes of request frames.", labels=["api"])
    bytes_out = CounterMetricFamily("barnabas_response_bytes", "Bytes of response frames.", labels=["api"])
    requests = CounterMetricFamily("barnabas_requests", "Requests served.", labels=["api"])
    bounds = [*(str(bound / 1e9) for bound in DURATION_BOUNDS_NS), "+Inf"]
    for api in apis:
        requests.add_metric([api.name], api.count)
        bytes_in.add_metric([api.name], api.bytes_in)
        bytes_out.add_metric([api.name], api.bytes_out)
        buckets = list(zip(bounds, map(float, accumulate(api.buckets)), strict=True))
        durations.add_metric([api.name], buckets, sum_value=api.duration_ns / 1e9)
    yield from (requests, durations, bytes_in, bytes_out)


def _partition_metrics(partitions: tuple[PartitionFigures, ...]) -> Iterator[Metric]:
    yield GaugeMetricFamily("barnabas_partitions", "Replicas on this broker.", value=len(partitions))
    leaders = sum(partition.is_leader for partition in partitions)
    yield GaugeMetricFamily("barnabas_leader_partitions", "Partitions that this broker leads.", value=leaders)
    labels = ["topic", "partition"]
    size = GaugeMetricFamily("barnabas_log_size_bytes", "Bytes of a partition's segments.", labels=labels)
    start = GaugeMetricFamily("barnabas_log_start_offset", "First offset that can be read.", labels=labels)
    end = GaugeMetricFamily("barnabas_log_end_offset", "Offset that the next record gets.", labels=labels)
    committed = GaugeMetricFamily("barnabas_high_watermark", "First offset that consumers do not see.", labels=labels)
    for partition in partitions:
        names = [partition.topic, str(partition.partition)]
        size.add_metric(names, partition.size_bytes)
        start.add_metric(names, partition.log_start_offset)
        end.add_metric(names, partition.log_end_offset)
        committed.add_metric(names, partition.high_watermark)
    yield from (size, start, end, committed)


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
            # Known only where the partition lives on this broker.
            high_watermark = high_watermarks.get((topic, partition))
            if high_watermark is not None:
                lag.add_metric(names, max(0, high_watermark - offset))
    yield from (members, offsets, lag)
    yield GaugeMetricFamily(
        "barnabas_groups_left_out", "Groups that would make this page too long.", value=snapshot.groups_left_out
    )


def _set_aside_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """The last two are Kafka's `uncleanable-partitions-count` and `uncleanable-bytes`."""
    labels = ["activity"]
    members = GaugeMetricFamily("barnabas_set_aside", "What upkeep leaves out because it failed.", labels=labels)
    failures = CounterMetricFamily("barnabas_upkeep_failures", "How often upkeep failed at something.", labels=labels)
    for aside in snapshot.set_aside:
        members.add_metric([aside.activity], aside.count)
        failures.add_metric([aside.activity], aside.failures)
    labels = ["directory"]
    count = GaugeMetricFamily("barnabas_uncleanable_partitions", "Logs that compaction leaves out.", labels=labels)
    size = GaugeMetricFamily("barnabas_uncleanable_bytes", "Bytes of these logs.", labels=labels)
    for uncleanable in snapshot.uncleanable:
        count.add_metric([uncleanable.directory], uncleanable.count)
        size.add_metric([uncleanable.directory], uncleanable.size_bytes)
    yield from (members, failures, count, size)
    refused = CounterMetricFamily(
        "barnabas_refused_for_memory", "What coordinators had no room for.", labels=["coordinator"]
    )
    for coordinator, number in snapshot.refused_for_memory:
        refused.add_metric([coordinator], number)
    yield refused
    yield CounterMetricFamily(
        "barnabas_unforeseen_errors",
        "Entries of requests that were refused because of a mistake in the broker.",
        value=snapshot.unforeseen_errors,
    )
