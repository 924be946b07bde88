"""What the measurements were made on and with."""

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from barnabas.clock import SystemClock
from tools.jvm.java import find_java
from tools.kafka_runtime import ORACLE_VERSION


def environment(arguments: str) -> dict[str, str]:
    """Machine, versions and command, as lines for a report; where the measurements went is nobody's concern."""
    arguments = re.sub(r"\s*--json[= ]\S+", "", arguments)
    bindings = importlib.metadata.version("confluent-kafka")
    load = os.getloadavg()[0]
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "command": f"make bench ARGS='{arguments}'" if arguments else "make bench",
        "date": f"{now:%Y-%m-%d %H:%M} UTC, load of the machine before: {load:.1f}",
        "machine": f"{_cpu()}, {os.cpu_count()} CPUs, {_memory_gib():.0f} GiB, Linux {platform.release()}",
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


def _java() -> str:
    told = subprocess.run([str(find_java()), "-version"], capture_output=True, text=True, check=False).stderr
    return told.partition('"')[2].partition('"')[0] or "?"
