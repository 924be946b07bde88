"""The table in README.md leaves out no tool of either release."""

import re
import zipfile
from pathlib import Path

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from compat_tests.java_tools.kafka_tools import VERSIONS
from tests.support.required import tool_missing
from tools.foreign.kafka import kafka_runtime

README = Path(__file__).parent / "README.md"
MAIN = (b"\x01\x00\x04main", b"\x01\x00\x16([Ljava/lang/String;)V")
"""Name and descriptor of the method, as the constant pool of a class file holds them."""


def main_classes(version: str) -> set[str]:
    """The classes with a `main` in the jars of Kafka's tools and of its core, without their packages."""
    found = set()
    for jar in kafka_runtime(version).folder.glob("kafka[-_]*.jar"):
        if not jar.name.startswith(("kafka-tools-", "kafka_2.13-")) or "-api-" in jar.name:
            continue
        with zipfile.ZipFile(jar) as classes:
            for name in classes.namelist():
                if name.endswith(".class") and "$" not in name:
                    content = classes.read(name)
                    if all(constant in content for constant in MAIN):
                        found.add(name.removesuffix(".class").rpartition("/")[2])
    return found


@pytest.mark.parametrize("release", VERSIONS)
def test_every_main_class_is_in_the_table(release: str) -> None:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    named = set(re.findall(r"`(?:[\w.]+\.)?(\w+)`", README.read_text()))

    found = main_classes(release)

    assert {"TopicCommand", "ConfigCommand"} <= found
    assert found - named == set()
