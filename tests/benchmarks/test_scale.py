import pytest

from benchmarks import active_clients
from benchmarks.scale import connections_kib, measure


@pytest.mark.full
def test_costs_of_partitions_and_connections_are_measured() -> None:
    """In a small form: everything runs, and what cannot be nothing is not."""
    nothing, some = measure(3, [0, 30], idle_s=1)
    assert (nothing.partitions, nothing.led_s) == (0, 0.0)
    assert some.partitions == 30
    assert some.made_cpu_s > 0
    assert some.led_s > 0
    assert some.broker_mib > nothing.broker_mib > 0
    assert some.parent_mib > 0
    assert connections_kib(50) > 0


@pytest.mark.full
def test_costs_of_active_clients_are_measured() -> None:
    served = active_clients.measure(20, seconds=2)
    assert served.clients == 20
    assert served.processor > 0
    assert 0 < served.p50_ms <= served.p99_ms
