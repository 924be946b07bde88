"""Hadoop's local file system without a process for each file.

Hadoop reads and sets permissions by its native library, which PySpark lacks, or by `ls`, `chmod` and `readlink`:
several processes for each file of a checkpoint. The class configured here uses Java instead.
"""

from typing import Final

from barnabas.spark_examples.ivy import Library, fetch
from barnabas.spark_examples.java import cache_folder

LIBRARY: Final = Library("com.globalmentor", "hadoop-bare-naked-local-fs", "0.1.0")
"""Apache-2.0, 16 kB; it depends only on libraries that each Spark includes."""


def settings_for_spark() -> dict[str, str]:
    """Spark's settings for local files without processes; the library is downloaded if it is missing.

    Raises FetchFailed.
    """
    folder = fetch(
        cache_folder() / LIBRARY.name / LIBRARY.version, [LIBRARY], title="Hadoop's local files without shells"
    )
    jars = f"{folder}/*"
    return {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        # The other class, for FileContext, checks whether each file is a link.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
        ),
    }
