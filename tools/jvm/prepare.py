"""Puts in place what the tests need beyond Python packages: Java, Apache Kafka's jars, Debian's kcat.

Without Java it ends with a message that says what to install; without kcat the tests that use it are skipped.
"""

import shutil
import sys

from tools.jvm.ivy import FetchFailed
from tools.jvm.java import JavaMissing, find_java, install_debian_packages, say
from tools.kafka_runtime import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime


def main() -> None:
    """Prepare this machine; a second time it only looks."""
    try:
        find_java()
        for version in (ORACLE_VERSION, ZOOKEEPER_ERA_VERSION):
            kafka_runtime(version)
    except (JavaMissing, FetchFailed) as problem:
        sys.exit(str(problem))
    if shutil.which("kcat") is None and not install_debian_packages(["kcat"]):
        say("kcat is not installed (apt-get install kcat): its tests will be skipped")


if __name__ == "__main__":
    main()
