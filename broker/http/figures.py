"""The figures of the page /metrics, as values: `take_snapshot` reads the broker inside its event loop, without I/O;
`metrics_page` renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import API_NAMES

if TYPE_CHECKING:
    from barnabas.broker.cluster.peers import Peers
    from barnabas.broker.observability.request_metrics import RequestMetrics
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.services import Services
    from barnabas.broker.upkeep.compaction import Compaction
    from barnabas.set_aside import SetAside

GROUPS_TEXT_BYTES_MAX: Final = 8 * 1024 * 1024
"""The limit of the page's bytes about groups and their offsets, whose number and names clients choose; the page
contains the number of groups left out."""

TOPICS_MAX: Final = 1_000
"""The number of topics with counters of their own, the first that this broker hosts; the page contains the number of
the others."""


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
class ReplicationFigures:
    """The partitions that this broker leads, with the number of changes of their ISRs, and those that it follows."""

    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0
    fetched_bytes: int = 0
    max_lag: int = 0
    not_fetched: int = 0


@dataclass(frozen=True, slots=True)
class ControllerFigures:
    """The controller of this broker; `offline_partitions` is 0 if another one is active."""

    is_active: bool
    epoch: int
    queue_length: int
    event_count: int
    event_ms: int
    offline_partitions: int
    left_out_topics: int


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """The requests to another broker, for one purpose."""

    broker_id: int
    purpose: str
    sent_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class LoginFigures:
    """The logins of SASL on a listener: `is_again` for re-authentications."""

    listener: str
    succeeded: bool
    is_again: bool
    count: int


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """The records written to and read from a topic, since this broker began to host it."""

    name: str
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group that this broker coordinates; offsets are (topic, partition, committed offset)."""

    name: str
    state: str
    member_count: int
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class QuotaFigures:
    """One type of quota of clients: how often it throttled them, for how long together, and how many are known."""

    quota: str
    throttle_count: int
    throttle_ms: int
    client_count: int


@dataclass(frozen=True, slots=True)
class SetAsideFigures:
    """One activity of upkeep: how many logs, groups or the like are set aside in it now, and how often one failed."""

    activity: str
    count: int
    failures: int


@dataclass(frozen=True, slots=True)
class DirectoryFigures:
    """The file system of a log directory, and whether the directory takes no records from clients for lack of room."""

    directory: str
    free_bytes: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class UncleanableFigures:
    """The logs of a log directory that compaction has set aside."""

    directory: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All figures of the page, read at one moment."""

    node_id: int
    cluster_id: str
    is_ready: bool
    connection_count: int
    failed_tls_handshakes: int
    event_loop_lag_seconds: float
    apis: tuple[ApiFigures, ...]
    errors: tuple[tuple[str, str, int], ...]
    """(API, error, how often)."""
    topics: tuple[TopicFigures, ...]
    topics_left_out: int
    partitions: tuple[PartitionFigures, ...]
    replication: ReplicationFigures
    controller: ControllerFigures
    peers: tuple[PeerFigures, ...]
    logins: tuple[LoginFigures, ...]
    groups: tuple[GroupFigures, ...]
    groups_left_out: int
    unforeseen_errors: int
    refused_for_memory: tuple[tuple[str, int], ...]
    set_aside: tuple[SetAsideFigures, ...]
    uncleanable: tuple[UncleanableFigures, ...]
    directories: tuple[DirectoryFigures, ...]
    quotas: tuple[QuotaFigures, ...] = ()
    """None before the first quota was configured."""


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of a broker whose figures are on the page; `activities` returns the upkeep that may have set logs,
    groups or the like aside, `peers` the connections to other brokers, and `quotas` those of clients, if any."""

    services: Services
    requests: RequestMetrics
    compaction: Compaction
    activities: Callable[[], Sequence[SetAside[Any]]]
    is_ready: Callable[[], bool]
    peers: Callable[[], Peers | None] = lambda: None
    quotas: Callable[[], ClientQuotas | None] = lambda: None


def take_snapshot(sources: MetricSources, topics_max: int = TOPICS_MAX) -> Snapshot:
    """Read a broker; call it inside its event loop."""
    services = sources.services
    groups, groups_left_out = services.groups.summaries(GROUPS_TEXT_BYTES_MAX)
    topics = _topics(services)
    handshakes = services.connections.tls_handshakes
    return Snapshot(
        node_id=services.node_id,
        cluster_id=services.cluster_id,
        is_ready=sources.is_ready(),
        connection_count=len(services.connections),
        failed_tls_handshakes=0 if handshakes is None else handshakes.failed_count,
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
        errors=tuple(
            (API_NAMES.get(key, str(key)), ErrorCode.of(code).name, count)
            for (key, code), count in sorted(sources.requests.errors.items())
        ),
        topics=tuple(topics[:topics_max]),
        topics_left_out=len(topics[topics_max:]),
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
        replication=_replication(services),
        controller=_controller(services),
        peers=_peers(sources),
        logins=tuple(_logins(services)),
        groups=tuple(
            GroupFigures(group.group_id, group.state.value, group.member_count, group.offsets) for group in groups
        ),
        groups_left_out=groups_left_out,
        unforeseen_errors=services.unforeseen.count,
        refused_for_memory=(
            ("groups", services.groups.runtime.memory.refused_count),
            ("transactions", services.transactions.runtime.memory.refused_count),
        ),
        set_aside=tuple(SetAsideFigures(aside.activity, len(aside), aside.failures) for aside in sources.activities()),
        uncleanable=tuple(_uncleanable(sources)),
        directories=tuple(
            DirectoryFigures(directory, free_bytes, directory in services.disk_space.full)
            for directory, free_bytes in sorted(services.disk_space.free_bytes.items())
        ),
        quotas=_quotas(sources),
    )


def _replication(services: Services) -> ReplicationFigures:
    replicas = services.replicas
    counted = replicas.leaderships
    fetchers = () if replicas.fetchers is None else replicas.fetchers.fetchers
    followed = ReplicationFigures(
        fetched_bytes=0 if replicas.fetchers is None else replicas.fetchers.appended_bytes,
        max_lag=max((fetcher.max_lag for fetcher in fetchers), default=0),
        not_fetched=sum(fetcher.given_up_count for fetcher in fetchers),
    )
    if counted is None:
        return followed
    led = [partition for partition in replicas.partitions() if partition.leadership is not None]
    return replace(
        followed,
        under_replicated=sum(len(partition.state.isr) < partition.state.replication_factor for partition in led),
        at_min_isr=sum(partition.has_just_enough_in_sync for partition in led),
        under_min_isr=sum(partition.has_too_few_in_sync for partition in led),
        isr_expands=counted.isr_expands,
        isr_shrinks=counted.isr_shrinks,
        failed_isr_updates=counted.failed_isr_updates,
    )


def _controller(services: Services) -> ControllerFigures:
    controller = services.controller
    return ControllerFigures(
        is_active=controller.is_active,
        epoch=controller.epoch,
        queue_length=controller.queue_length,
        event_count=controller.event_count,
        event_ms=controller.event_ms,
        offline_partitions=services.metadata.leaderless_count() if controller.is_active else 0,
        left_out_topics=controller.left_out_count,
    )


def _peers(sources: MetricSources) -> tuple[PeerFigures, ...]:
    peers = sources.peers()
    return tuple(
        PeerFigures(broker_id, purpose, connection.sent_count, connection.waiting_count)
        for broker_id, purpose, connection in (() if peers is None else peers.connections())
    )


def _quotas(sources: MetricSources) -> tuple[QuotaFigures, ...]:
    quotas = sources.quotas()
    return () if quotas is None else tuple(QuotaFigures(*usage) for usage in quotas.usages())


def _logins(services: Services) -> Iterator[LoginFigures]:
    for name, listener in services.sasl.listeners.items():
        counts = listener.counts
        yield LoginFigures(name, True, False, counts.succeeded)
        yield LoginFigures(name, False, False, counts.failed)
        yield LoginFigures(name, True, True, counts.succeeded_again)
        yield LoginFigures(name, False, True, counts.failed_again)


def _topics(services: Services) -> list[TopicFigures]:
    """The topics with their figures, in the order of their creation here, so that those on the page stay on it."""
    sums: dict[str, list[int]] = {}
    for partition in services.replicas.partitions():
        messages_in, bytes_in = partition.log.appended
        of_topic = sums.setdefault(partition.topic, [0, 0, 0, 0])
        of_topic[0] += messages_in
        of_topic[1] += partition.records_read + partition.log.sent_records
        of_topic[2] += bytes_in
        of_topic[3] += partition.bytes_out
    return [TopicFigures(name, *of_topic) for name, of_topic in sums.items()]


def _uncleanable(sources: MetricSources) -> Iterator[UncleanableFigures]:
    logs = sources.compaction.set_aside.members
    for directory in map(str, sources.services.log_manager.directories):
        sizes = [log.size_in_bytes for log in logs if log.directory.rpartition("/")[0] == directory]
        yield UncleanableFigures(directory, len(sizes), sum(sizes))
