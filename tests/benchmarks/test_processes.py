import os

from benchmarks.model import MIB
from benchmarks.processes import _free_bytes, resident_mib, touched_memory


def test_touched_memory_is_at_hand_until_it_is_closed() -> None:
    before = resident_mib(os.getpid())
    taken = touched_memory(64 * MIB / _free_bytes())
    assert len(taken) > 32 * MIB  # others use memory, too
    assert resident_mib(os.getpid()) - before > 0.9 * len(taken) / MIB
    taken.close()
    assert resident_mib(os.getpid()) - before < 32


def test_little_free_memory_is_touched_in_part() -> None:
    with touched_memory(1e-12) as taken:
        assert len(taken) == os.sysconf("SC_PAGE_SIZE")
