"""Installs everything that the tests need beyond Python packages, so that they download nothing: Java, Kafka's and
Spark's jars, the flights of the Spark examples, Debian's programs (below), clients in other languages.

Without Java it ends with a message about the missing package. Without one of Debian's programs, Node.js or Go, the
tests that use it are skipped.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from barnabas.spark_examples.flights import fetch_archive
from barnabas.spark_examples.ivy import FetchFailed
from barnabas.spark_examples.java import JavaMissing, find_java, install_debian_packages, say
from barnabas.spark_examples.session import fetch_connector
from tools.foreign.kafka import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, connect_runtime, kafka_runtime, streams_runtime
from tools.foreign.languages import BuildFailed, ToolchainMissing, go_program, node_modules
from tools.jvm.junit import junit_classpath
from tools.jvm.local_files import settings_for_spark
from tools.wiregen import jars

DEBIAN_PROGRAMS = {"curl": "curl", "jq": "jq", "kcat": "kcat", "fiu-ctrl": "fiu-utils", "strace": "strace"}
"""Other programs for the tests, and the Debian package of each; fiu-ctrl and strace make system calls fail."""
COMPAT_TESTS = Path(__file__).resolve().parents[1] / "compat_tests"


def main() -> None:
    """Prepare this machine; a second run only checks."""
    try:
        find_java()
        for version in (ORACLE_VERSION, ZOOKEEPER_ERA_VERSION):
            kafka_runtime(version)
        connect_runtime()
        streams_runtime()
        junit_classpath()
        fetch_connector()
        settings_for_spark()
        for name in jars.SHA256:
            jars.fetch(name)
        fetch_archive()
    except (JavaMissing, FetchFailed, OSError, ValueError, subprocess.CalledProcessError) as problem:
        sys.exit(str(problem))
    for program, package in DEBIAN_PROGRAMS.items():
        if shutil.which(program) is None and not install_debian_packages([package]):
            say(f"{program} is not installed (apt-get install {package}): its tests will be skipped")
    _prepare_other_languages()


def _prepare_other_languages() -> None:
    try:
        for folder in ("kafkajs_client", "sasl/oauth_issuer"):
            node_modules(COMPAT_TESTS / folder)
    except ToolchainMissing as missing:
        say(f"{missing}: its tests will be skipped")
    except BuildFailed as problem:
        sys.exit(str(problem))
    try:
        for programs in (COMPAT_TESTS / "go_clients", COMPAT_TESTS / "security" / "clients" / "drivers"):
            for name in ("franz_go", "sarama"):
                go_program(programs / name)
        go_program(COMPAT_TESTS / "go_clients" / "franz_go", of_tests=True)
    except ToolchainMissing as missing:
        say(f"{missing}: its tests will be skipped")
    except BuildFailed as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
