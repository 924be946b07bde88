import pytest

from benchmarks.model import MIB
from benchmarks.moves import measure


@pytest.mark.full
def test_a_cluster_grows_and_shrinks_under_a_producer() -> None:
    """In a small form; its latencies tell nothing on a machine that is busy."""
    found = measure(rate_mib=2, quiet_s=2, ballast_bytes=8 * MIB, throttle=50_000_000, memory_share=0)
    assert (found.errors, found.lost, found.doubled) == ([], 0, 0)
    assert found.acknowledged > 2 * 2 * 1024
    assert set(found.phases) == {"a broker joins", "rebalance", "drain", "switched off", "afterwards"}
    assert found.quiet_p99_ms > 0
    assert found.p99_ms > 0
