"""Puts in place what the tests need beyond Python packages: Java, Kafka's jars, kcat, clients in other languages.

Without Java it ends with a message that says what to install; without kcat, Node.js or Go the tests that use them are
skipped.
"""

import shutil
import sys
from pathlib import Path

from tools.foreign_languages import BuildFailed, ToolchainMissing, go_program, node_modules
from tools.jvm.ivy import FetchFailed
from tools.jvm.java import JavaMissing, find_java, install_debian_packages, say
from tools.kafka_runtime import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, connect_runtime, kafka_runtime, streams_runtime

COMPAT_TESTS = Path(__file__).resolve().parents[2] / "compat_tests"


def main() -> None:
    """Prepare this machine; a second time it only looks."""
    try:
        find_java()
        for version in (ORACLE_VERSION, ZOOKEEPER_ERA_VERSION):
            kafka_runtime(version)
        connect_runtime()
        streams_runtime()
    except (JavaMissing, FetchFailed) as problem:
        sys.exit(str(problem))
    if shutil.which("kcat") is None and not install_debian_packages(["kcat"]):
        say("kcat is not installed (apt-get install kcat): its tests will be skipped")
    _prepare_other_languages()


def _prepare_other_languages() -> None:
    try:
        node_modules(COMPAT_TESTS / "kafkajs_client")
    except ToolchainMissing as missing:
        say(f"{missing}: its tests will be skipped")
    except BuildFailed as problem:
        sys.exit(str(problem))
    try:
        for name in ("franz_go", "sarama"):
            go_program(COMPAT_TESTS / "go_clients" / name)
    except ToolchainMissing as missing:
        say(f"{missing}: its tests will be skipped")
    except BuildFailed as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
