"""JUnit's console launcher, for tests that are written in Java."""

from pathlib import Path
from typing import Final

from barnabas.spark_examples.ivy import Library, fetch
from barnabas.spark_examples.java import cache_folder

VERSION: Final = "1.14.4"
"""The version of JUnit's platform, which runs tests of JUnit 5."""


def junit_classpath() -> str:
    """For `java -cp`; fetched from Maven Central, where Ivy compares checksums, if it is not there yet.

    Raises FetchFailed.
    """
    console = Library("org.junit.platform", "junit-platform-console-standalone", VERSION)
    folder: Path = fetch(cache_folder() / "junit" / VERSION, [console], title=f"JUnit's console {VERSION}")
    return f"{folder}/*"
