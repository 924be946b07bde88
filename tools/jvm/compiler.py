"""Java's compiler, which tests of clients in Java need."""

from pathlib import Path
from typing import Final

from barnabas.spark_examples.java import JavaMissing, find_java

DEBIAN_PACKAGE: Final = "openjdk-17-jdk-headless"


def find_compiler() -> Path:
    """The `javac` of the `java` to use. Raises JavaMissing, also for a Java without a compiler."""
    compiler = find_java().resolve().with_name("javac")
    if not compiler.exists():
        raise JavaMissing(f"{find_java()} has no compiler beside it (Debian: apt-get install {DEBIAN_PACKAGE})")
    return compiler
