"""Writes docs/metrics.md from the metrics on the page /metrics: `python -m tools.references.metrics`."""

from collections.abc import Iterator
from pathlib import Path

from barnabas.broker.http.figures import (
    TOPICS_MAX,
    ApiFigures,
    ControllerFigures,
    DirectoryFigures,
    GroupFigures,
    LoginFigures,
    PartitionFigures,
    PeerFigures,
    QuotaFigures,
    ReplicationFigures,
    SetAsideFigures,
    Snapshot,
    TopicFigures,
    UncleanableFigures,
)
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.broker.observability.request_metrics import DURATION_BOUNDS_NS
from tools.markdown import wrapped

TARGET = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

INTRODUCTION = f"""# Metrics

`barnabas serve --http 127.0.0.1:8080` (`barnabas.http.address`) serves these pages; `/` lists them:

- `/metrics`: the metrics below, in Prometheus' text format or, where the `Accept` header asks for it, in OpenMetrics';
- `/healthz`: 200 as long as the process lives and its event loop turns;
- `/readyz`: 200 while clients are accepted, 503 before and after. In a cluster it is 503 after a start until all
  replicas of the broker have been in sync, and says how many are not (`not ready: 3 replicas not in sync yet`); what
  falls behind later does not change it, and partitions without a leader do not count. Nor does a full log directory,
  which it names (`ready, but /data is full, records of clients are refused`): what is there is served.

```yaml
scrape_configs:
  - job_name: barnabas
    static_configs:
      - targets: ["127.0.0.1:8080"]
```

Counters begin at 0 with the broker's start (those of a topic when the broker begins to host it) and end in `_total`; a
rate is `rate(barnabas_topic_bytes_in_total[1m])`. Where Kafka has the same, the meaning names Kafka's metric.

What anybody can create is bounded on the page. The first {TOPICS_MAX:,} topics have counters of their own, those beyond
are counted in `barnabas_topics_left_out`; groups and their offsets take 8 MiB of text, those beyond are counted in
`barnabas_groups_left_out` ([limits](limits/metrics.md)). APIs and errors are as many as Kafka has.

*This page is written by `make docs`.*

## The metrics

In brackets: the type, and the labels.

"""

EXAMPLE = Snapshot(
    node_id=1,
    cluster_id="cluster",
    is_ready=True,
    connection_count=1,
    failed_tls_handshakes=0,
    event_loop_lag_seconds=0.0,
    apis=(ApiFigures("Produce", 1, 1, 1, 1, (0,) * (len(DURATION_BOUNDS_NS) + 1)),),
    errors=(("Produce", "NOT_LEADER_OR_FOLLOWER", 1),),
    topics=(TopicFigures("flights", 1, 1, 1, 1),),
    topics_left_out=0,
    partitions=(PartitionFigures("flights", 0, True, 1, 0, 1, 1),),
    replication=ReplicationFigures(),
    controller=ControllerFigures(True, 1, 0, 1, 1, 0, 0),
    peers=(PeerFigures(2, "fetcher-0", 1, 1),),
    logins=(LoginFigures("CLIENTS", True, False, 1), LoginFigures("CLIENTS", True, True, 1)),
    groups=(GroupFigures("readers", "Stable", 1, (("flights", 0, 1),)),),
    groups_left_out=0,
    unforeseen_errors=0,
    refused_for_memory=(("groups", 0),),
    set_aside=(SetAsideFigures("retention", 0, 0),),
    uncleanable=(UncleanableFigures("/data", 0, 0),),
    directories=(DirectoryFigures("/data", 1, False),),
    quotas=(QuotaFigures("produce", 1, 1, 1),),
)
"""A broker with one object of each kind."""


def reference() -> str:
    """The whole page."""
    return INTRODUCTION + "\n".join(_items()) + "\n"


def _items() -> Iterator[str]:
    for metric in MetricsPage().families(EXAMPLE):
        labels = ", ".join(f"`{label}`" for label in metric.samples[0].labels if label != "le")
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        about = "; ".join(filter(None, (metric.type, labels)))
        yield wrapped(f"- **`{name}`** ({about}): {metric.documentation}")


if __name__ == "__main__":
    TARGET.write_text(reference())
