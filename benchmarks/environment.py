"""The environment of a run: the machine, and the versions of what was measured."""

import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from barnabas.spark_examples.java import find_java
from benchmarks.clients import now_s
from tools.foreign.kafka import ORACLE_VERSION

MEASURED = (
    "barnabas", "broker", "controller", "storage", "wire", "benchmarks", "spark_examples", "tools", "Makefile",
    "pyproject.toml",
)  # fmt: skip
"""The paths on which a measurement depends: they alone decide whether a run is resumed, and which commit it names."""


def environment(arguments: str) -> dict[str, str]:
    """Machine, versions and command, as lines for a report; where the measurements went is nobody's concern."""
    arguments = re.sub(r"\s*--(json[= ]\S+|resume)", "", arguments)
    bindings = importlib.metadata.version("confluent-kafka")
    load = os.getloadavg()[0]
    now = datetime.fromtimestamp(now_s(), UTC)
    return {
        "command": f"make bench ARGS='{arguments}'" if arguments else "make bench",
        "date": f"{now:%Y-%m-%d %H:%M} UTC, load of the machine before: {load:.1f}",
        "machine": f"{_cpu()}, {os.cpu_count()} CPUs, {_memory_gib():.0f} GiB, Linux {_linux()}",
        "disk": f"{_file_system(tempfile.gettempdir())}",
        "Barnabas": f"commit {_commit()}",
        "Python": f"{platform.python_version()}, uvloop {importlib.metadata.version('uvloop')}",
        "Apache Kafka": f"{ORACLE_VERSION} on Java {_java()}, its default heap (1 GiB)",
        "librdkafka": f"{confluent_kafka.libversion()[0]} through confluent-kafka {bindings}",
        "Spark": importlib.metadata.version("pyspark"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _linux() -> str:
    """The kernel's version without what its builder has added."""
    return ".".join(platform.release().split(".")[:2])


def _file_system(folder: str) -> str:
    """The kind of the file system that the brokers' files lie in."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    around = [(len(point), kind) for point, kind in mounts if Path(folder).resolve().is_relative_to(point)]
    return max(around)[1] if around else "unknown"


def _commit() -> str:
    """The last commit that changed what is measured or what measures, not those of documents and tests after it."""
    told = _git("log", "-1", "--format=%h", "--", *MEASURED)
    return (told or "unknown") + ("-dirty" if _git("status", "--porcelain", "--", *MEASURED) else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).parent.parent
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def _java() -> str:
    told = subprocess.run([str(find_java()), "-version"], capture_output=True, text=True, check=False).stderr
    return told.partition('"')[2].partition('"')[0] or "?"
