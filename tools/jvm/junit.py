"""JUnit's console launcher, for tests that are written in Java."""

from pathlib import Path
from typing import Final

from barnabas.spark_examples.ivy import Library, fetch
from barnabas.spark_examples.java import cache_folder

VERSION: Final = "1.14.4"
"""The version of JUnit's platform for tests with JUnit 5."""


def junit_classpath() -> str:
    """The class path for `java -cp`. Missing jars are downloaded from Maven Central, with Ivy's check of checksums.

    Raises FetchFailed.
    """
    console = Library("org.junit.platform", "junit-platform-console-standalone", VERSION)
    folder: Path = fetch(cache_folder() / "junit" / VERSION, [console], title=f"JUnit's console {VERSION}")
    return f"{folder}/*"
