"""What is counted, and the page that shows it."""

from types import SimpleNamespace
from typing import Any

from barnabas.broker.http.metrics_page import MetricSources, MetricsPage, take_snapshot
from barnabas.broker.observability.request_metrics import DURATION_BOUNDS_NS, RequestMetrics
from barnabas.clock import ManualClock
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ErrorCode

HOSTILE_GROUP = 'a"b\\c\nd'


def sources() -> MetricSources:
    metrics = RequestMetrics()
    metrics.record(0, 60_000, 100, 10)
    metrics.record(0, 2_000_000_000, 200, 20)
    metrics.record(3, 50_000, 1, 2)
    metrics.record(999, 31_000_000_000, 1, 0)
    metrics.count_error(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    metrics.count_error(3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    metrics.count_error(3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    metrics.event_loop_lag_seconds = 0.25
    log = SimpleNamespace(
        size_in_bytes=1234, log_start_offset=3, high_watermark=40, log_end_offset=50, appended=(7, 900), sent_records=2
    )
    partition = SimpleNamespace(
        topic="flights",
        index=2,
        state=SimpleNamespace(is_leader=True, isr=(1,), replicas=(1, 2, 3, 4), replication_factor=3),
        leadership=object(),
        has_too_few_in_sync=True,
        has_just_enough_in_sync=False,
        log=log,
        bytes_out=300,
        records_read=3,
    )
    leaderships = SimpleNamespace(isr_expands=4, isr_shrinks=5, failed_isr_updates=6)
    fetchers = [SimpleNamespace(max_lag=7, given_up_count=1), SimpleNamespace(max_lag=3, given_up_count=8)]
    fetcher_manager = SimpleNamespace(fetchers=fetchers, appended_bytes=77)
    summary = SimpleNamespace(
        group_id=HOSTILE_GROUP,
        state=SimpleNamespace(value="Stable"),
        member_count=3,
        offsets=(("flights", 2, 30), ("elsewhere", 0, 7)),
    )
    aside = SetAside[str]("retention", ManualClock())
    for _ in range(2):
        aside.put("flights-2", ValueError())
    uncleanable = SimpleNamespace(directory="/data/a/flights-2", size_in_bytes=1234)
    services = SimpleNamespace(
        node_id=1,
        cluster_id="cluster",
        connections=[1, 2],
        replicas=SimpleNamespace(
            partitions=lambda: iter([partition]), leaderships=leaderships, fetchers=fetcher_manager
        ),
        groups=SimpleNamespace(
            summaries=lambda text_bytes_max: ([summary], 3),
            runtime=SimpleNamespace(memory=SimpleNamespace(refused_count=5)),
        ),
        transactions=SimpleNamespace(runtime=SimpleNamespace(memory=SimpleNamespace(refused_count=6))),
        log_manager=SimpleNamespace(directories=["/data/a", "/data/b"]),
        unforeseen=SimpleNamespace(count=3),
        disk_space=SimpleNamespace(free_bytes={"/data/b": 5, "/data/a": 123456}, full=["/data/b"]),
        controller=SimpleNamespace(
            is_active=True, epoch=4, queue_length=2, event_count=10, event_ms=1500, left_out_count=5
        ),
        metadata=SimpleNamespace(leaderless_count=lambda: 3),
    )
    compaction = SimpleNamespace(set_aside=SimpleNamespace(members=[uncleanable]))
    parts: Any = (services, metrics, compaction)
    connection = SimpleNamespace(sent_count=12, waiting_count=1)
    peers: Any = SimpleNamespace(connections=lambda: iter([(2, "fetcher-0", connection)]))
    return MetricSources(*parts, lambda: [aside], lambda: True, lambda: peers)


def test_counters() -> None:
    metrics = RequestMetrics()
    for duration_ns in (0, DURATION_BOUNDS_NS[0], DURATION_BOUNDS_NS[0] + 1, 10**12):
        metrics.record(0, duration_ns, 5, 7)
    api = metrics.apis[0]
    assert (api.count, api.bytes_in, api.bytes_out) == (4, 20, 28)
    assert (api.buckets[0], api.buckets[1], api.buckets[-1]) == (2, 1, 1)
    assert sum(api.buckets) == api.count


def test_page() -> None:
    body, content_type = MetricsPage().render(take_snapshot(sources()), "")
    lines = body.decode().splitlines()
    assert content_type.startswith("text/plain")
    for line in (
        'barnabas_set_aside{activity="retention"} 1.0',
        'barnabas_upkeep_failures_total{activity="retention"} 2.0',
        'barnabas_uncleanable_partitions{directory="/data/a"} 1.0',
        'barnabas_uncleanable_bytes{directory="/data/a"} 1234.0',
        "barnabas_unforeseen_errors_total 3.0",
        'barnabas_refused_for_memory_total{coordinator="groups"} 5.0',
        'barnabas_refused_for_memory_total{coordinator="transactions"} 6.0',
        'barnabas_uncleanable_partitions{directory="/data/b"} 0.0',
        'barnabas_log_directory_free_bytes{directory="/data/a"} 123456.0',
        'barnabas_log_directory_full{directory="/data/a"} 0.0',
        'barnabas_log_directory_full{directory="/data/b"} 1.0',
        'barnabas_requests_total{api="Produce"} 2.0',
        'barnabas_requests_total{api="999"} 1.0',
        'barnabas_request_bytes_total{api="Produce"} 300.0',
        'barnabas_response_bytes_total{api="Produce"} 30.0',
        'barnabas_request_duration_seconds_bucket{api="Produce",le="0.0001"} 1.0',
        'barnabas_request_duration_seconds_bucket{api="Produce",le="+Inf"} 2.0',
        'barnabas_request_duration_seconds_count{api="Produce"} 2.0',
        'barnabas_request_errors_total{api="Produce",error="NOT_LEADER_OR_FOLLOWER"} 1.0',
        'barnabas_request_errors_total{api="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"} 2.0',
        'barnabas_topic_messages_in_total{topic="flights"} 7.0',
        'barnabas_topic_messages_out_total{topic="flights"} 5.0',
        'barnabas_topic_bytes_in_total{topic="flights"} 900.0',
        'barnabas_topic_bytes_out_total{topic="flights"} 300.0',
        "barnabas_topics_left_out 0.0",
        "barnabas_groups_left_out 3.0",
        "barnabas_connections 2.0",
        "barnabas_ready 1.0",
        "barnabas_partitions 1.0",
        "barnabas_under_replicated_partitions 1.0",
        "barnabas_under_min_isr_partitions 1.0",
        "barnabas_at_min_isr_partitions 0.0",
        "barnabas_controller_active 1.0",
        "barnabas_controller_epoch 4.0",
        "barnabas_controller_queue_length 2.0",
        "barnabas_controller_event_duration_seconds_count 10.0",
        "barnabas_controller_event_duration_seconds_sum 1.5",
        "barnabas_offline_partitions 3.0",
        'barnabas_peer_requests_total{broker="2",purpose="fetcher-0"} 12.0',
        'barnabas_peer_requests_waiting{broker="2",purpose="fetcher-0"} 1.0',
        "barnabas_isr_expands_total 4.0",
        "barnabas_isr_shrinks_total 5.0",
        "barnabas_failed_isr_updates_total 6.0",
        "barnabas_replication_bytes_in_total 77.0",
        "barnabas_replica_max_lag 7.0",
        "barnabas_replica_failed_partitions 9.0",
        "barnabas_event_loop_lag_seconds 0.25",
        'barnabas_log_size_bytes{partition="2",topic="flights"} 1234.0',
        'barnabas_high_watermark{partition="2",topic="flights"} 40.0',
        'barnabas_group_lag{group="a\\"b\\\\c\\nd",partition="2",topic="flights"} 10.0',
        'barnabas_group_offset{group="a\\"b\\\\c\\nd",partition="0",topic="elsewhere"} 7.0',
        'barnabas_group_members{group="a\\"b\\\\c\\nd",state="Stable"} 3.0',
    ):
        assert line in lines, line
    assert not any("group_lag" in line and "elsewhere" in line for line in lines)
    assert any(line.startswith("process_resident_memory_bytes") for line in lines)


def test_page_in_openmetrics() -> None:
    body, content_type = MetricsPage().render(take_snapshot(sources()), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
