"""The counters, and the page that shows them."""

from barnabas.broker.http.figures import (
    ApiFigures,
    ControllerFigures,
    DirectoryFigures,
    GroupFigures,
    LoginFigures,
    PartitionFigures,
    PeerFigures,
    ReplicationFigures,
    SetAsideFigures,
    Snapshot,
    TopicFigures,
    UncleanableFigures,
)
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.broker.observability.request_metrics import DURATION_BOUNDS_NS, RequestMetrics

HOSTILE_GROUP = 'a"b\\c\nd'

BUCKETS = len(DURATION_BOUNDS_NS) + 1

SNAPSHOT = Snapshot(
    node_id=1,
    cluster_id="cluster",
    is_ready=True,
    connection_count=2,
    failed_tls_handshakes=0,
    event_loop_lag_seconds=0.25,
    apis=(
        ApiFigures("Produce", 2, 2_000_060_000, 300, 30, (1, *[0] * (BUCKETS - 2), 1)),
        ApiFigures("999", 1, 31_000_000_000, 1, 0, (*[0] * (BUCKETS - 1), 1)),
    ),
    errors=(("Produce", "NOT_LEADER_OR_FOLLOWER", 1), ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", 2)),
    topics=(TopicFigures("flights", messages_in=7, messages_out=5, bytes_in=900, bytes_out=300),),
    topics_left_out=4,
    partitions=(PartitionFigures("flights", 2, True, 1234, 3, 40, 50),),
    replication=ReplicationFigures(
        under_replicated=1,
        at_min_isr=0,
        under_min_isr=2,
        isr_expands=4,
        isr_shrinks=5,
        failed_isr_updates=6,
        fetched_bytes=77,
        max_lag=7,
        not_fetched=9,
    ),
    controller=ControllerFigures(
        is_active=True, epoch=4, queue_length=2, event_count=10, event_ms=1500, offline_partitions=3, left_out_topics=5
    ),
    peers=(PeerFigures(2, "fetcher-0", sent_count=12, waiting_count=1),),
    logins=(LoginFigures("CLIENTS", True, False, 3), LoginFigures("CLIENTS", False, True, 2)),
    groups=(GroupFigures(HOSTILE_GROUP, "Stable", 3, (("flights", 2, 30), ("elsewhere", 0, 7))),),
    groups_left_out=3,
    unforeseen_errors=3,
    refused_for_memory=(("groups", 5), ("transactions", 6)),
    set_aside=(SetAsideFigures("retention", count=1, failures=2),),
    uncleanable=(UncleanableFigures("/data/a", 1, 1234), UncleanableFigures("/data/b", 0, 0)),
    directories=(DirectoryFigures("/data/a", 123456, False), DirectoryFigures("/data/b", 5, True)),
)


def test_counters() -> None:
    metrics = RequestMetrics()
    for duration_ns in (0, DURATION_BOUNDS_NS[0], DURATION_BOUNDS_NS[0] + 1, 10**12):
        metrics.record(0, duration_ns, 5, 7)
    api = metrics.apis[0]
    assert (api.count, api.bytes_in, api.bytes_out) == (4, 20, 28)
    assert (api.buckets[0], api.buckets[1], api.buckets[-1]) == (2, 1, 1)
    assert sum(api.buckets) == api.count


def test_page() -> None:
    body, content_type = MetricsPage().render(SNAPSHOT, "")
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
        "barnabas_topics_left_out 4.0",
        "barnabas_groups_left_out 3.0",
        "barnabas_connections 2.0",
        "barnabas_ready 1.0",
        "barnabas_partitions 1.0",
        "barnabas_under_replicated_partitions 1.0",
        "barnabas_under_min_isr_partitions 2.0",
        "barnabas_at_min_isr_partitions 0.0",
        "barnabas_controller_active 1.0",
        "barnabas_controller_epoch 4.0",
        "barnabas_controller_queue_length 2.0",
        "barnabas_controller_event_duration_seconds_count 10.0",
        "barnabas_controller_event_duration_seconds_sum 1.5",
        "barnabas_offline_partitions 3.0",
        "barnabas_controller_left_out_topics 5.0",
        'barnabas_peer_requests_total{broker="2",purpose="fetcher-0"} 12.0',
        'barnabas_peer_requests_waiting{broker="2",purpose="fetcher-0"} 1.0',
        'barnabas_authentications_total{listener="CLIENTS",result="success"} 3.0',
        'barnabas_reauthentications_total{listener="CLIENTS",result="failure"} 2.0',
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
    body, content_type = MetricsPage().render(SNAPSHOT, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
