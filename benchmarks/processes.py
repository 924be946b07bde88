"""The kernel's figures of a broker's process, and of the page cache."""

import atexit
import contextlib
import mmap
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from barnabas.spark_examples.java import find_java
from benchmarks.model import GIB, MIB, Figure, Goal
from benchmarks.system import Process

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
MEMORY = Path("/proc/meminfo")
INODES_MIN = 1_000_000
"""The number of free inodes below which files are not kept."""
REQUESTS = 100_000
"""The number of requests for which CPU time is given."""


def cpu_seconds(pid: int) -> float:
    """User and system time that a process used so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """The memory a process has resident now."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def pss_mib(pid: int) -> float:
    """The proportional share of the memory that a process has: what several share is divided among them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def live_heap_mib(pid: int) -> float:
    """The live objects in a Java process' heap, after the full collection with which a histogram begins;
    0 for another process, and without a JDK's `jcmd`."""
    jcmd = shutil.which("jcmd", path=f"{find_java().parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if jcmd is None or Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        return 0.0
    command = [jcmd, str(pid), "GC.class_histogram"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    total = re.search(r"^Total +\d+ +(\d+)$", told, re.M)
    if total is None:
        raise RuntimeError(f"jcmd does not tell what the heap holds: {told[:1000]}")
    return int(total[1]) / MIB


def disk_reads_mib(pid: int) -> float:
    """The amount that the disk has read for a process so far: data that it read or sent and the page cache lacked."""
    [line] = [line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("read_bytes")]
    return int(line.split()[1]) / MIB


class CpuUse:
    """CPU seconds of a broker, or of several together, within a `with` block."""

    def __init__(self, *brokers: Process) -> None:
        self._pids = [broker.pid for broker in brokers]
        self._before_s = sum(map(cpu_seconds, self._pids))
        self.seconds = 0.0

    def __enter__(self) -> "CpuUse":
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = sum(map(cpu_seconds, self._pids)) - self._before_s

    def in_all(self, name: str = "") -> Figure:
        """A figure of the CPU time in all."""
        return Figure(_named(name, "broker CPU"), self.seconds, "s")

    def per_gib(self, name: str, size: float, *goals: Goal) -> Figure:
        """A figure of the CPU time per GiB, for `size` bytes of record values."""
        return Figure(_named(name, "broker CPU"), self.seconds / (size / GIB), "s/GiB", goals)

    def per_requests(self, name: str, count: int, *goals: Goal) -> Figure:
        """A figure of the CPU time per 100,000 requests, for `count` requests."""
        return Figure(_named(name, "broker CPU"), self.seconds / count * REQUESTS, "s/100,000 requests", goals)


def resident(server: Process, name: str = "", *goals: Goal) -> Figure:
    """A broker's resident memory as a figure."""
    return Figure(_named(name, "resident memory"), resident_mib(server.pid), "MiB", goals)


def _named(name: str, what: str) -> str:
    return f"{name}: {what}" if name else what


def drop_page_cache(log_dir: Path) -> None:
    """Have the disk read again what a broker wrote: everything, where we may, else the files of this broker."""
    os.sync()
    with contextlib.suppress(OSError):  # not root, or a /proc that cannot be written
        DROP_CACHES.write_text("1")
        return
    for path in filter(Path.is_file, log_dir.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def touched_memory(share: float) -> mmap.mmap:
    """Memory that was free, so much of it, taken and written to; whoever closes it leaves that at hand for the page
    cache.

    A virtual machine's host may take back what its guest has not used: the first write to such a page costs ten times
    as much, whatever is written.
    """
    taken = mmap.mmap(-1, _whole_pages(share * _free_bytes()))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # page by page, as the page cache takes it
        taken.madvise(mmap.MADV_NOHUGEPAGE)
    block = bytes(MIB)
    for position in range(0, len(taken), MIB):
        taken[position : position + MIB] = block[: len(taken) - position]
    return taken


def _free_bytes() -> int:
    [line] = [line for line in MEMORY.read_text().splitlines() if line.startswith("MemFree:")]
    return int(line.split()[1]) * 1024


def _whole_pages(size: float) -> int:
    return max(1, int(size) // mmap.PAGESIZE) * mmap.PAGESIZE


def has_inodes_to_keep(folder: Path) -> bool:
    """Whether files may be kept there."""
    return os.statvfs(folder).f_favail >= INODES_MIN


def put_aside(log_dir: Path) -> None:
    """Keep the many files of a broker that has stopped, emptied, until this program ends.

    ext4 without a journal does not use an inode again for some minutes, and looks at each of them when it needs one: to
    remove 60,000 files now would cost the brokers that come next a millisecond for every file that they make.
    """
    if not has_inodes_to_keep(log_dir):
        return
    for path in log_dir.rglob("*.log"):
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
    kept = tempfile.mkdtemp(prefix="measured-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    log_dir.rename(Path(kept, log_dir.name))


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system does; the soft limit is often too small for many connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
