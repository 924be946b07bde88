"""Small files on whatever file system a URI names, through Hadoop's FileSystem in Spark's JVM.

Spark itself reads and writes data; this is for what lies beside it: a log, a report, a checkpoint's own notes.
"""

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from barnabas.spark_examples.session import is_submitted

DEFAULT_ELSEWHERE = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
"""If one of these is set, the files in that folder name the default file system."""


def local_path(uri: str, settings: Sequence[tuple[str, str]]) -> Path | None:
    """The path of a URI on this machine, with some settings of Spark; None if only Spark can tell."""
    if of_file := re.match("file:(?://(?=/))?(/(?!/).*)", uri):
        return Path(of_file[1])
    is_elsewhere = is_submitted() or any(name in os.environ for name in DEFAULT_ELSEWHERE)
    is_elsewhere = is_elsewhere or any(key.endswith("fs.defaultFS") for key, _ in settings)
    return None if is_elsewhere or re.match("[^/]+:", uri) else Path(uri)


class Entry(NamedTuple):
    """A file or folder in a folder; `modified_ms` since the epoch."""

    name: str
    modified_ms: int


class Usage(NamedTuple):
    """The data files below a folder (not `_SUCCESS` and the like): number, bytes and newest change."""

    files: int
    bytes: int
    newest_ms: int


class AlreadyThere(Exception):
    """The file to be created exists."""


class FileSystem:
    """Paths are URIs; without a scheme they are those of the cluster's default file system."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._java, self._hadoop = jvm.java, jvm.org.apache.hadoop
        self._gateway: Any = spark.sparkContext._gateway
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def _at(self, uri: str) -> tuple[Any, Any]:
        path = self._hadoop.fs.Path(uri)
        return path.getFileSystem(self._conf), path

    def exists(self, uri: str) -> bool:
        """Whether there is a file or folder."""
        system, path = self._at(uri)
        return bool(system.exists(path))

    def entries(self, uri: str) -> list[Entry]:
        """The entries of a folder, by name; none if the folder does not exist."""
        system, path = self._at(uri)
        if not system.exists(path):
            return []
        return sorted(Entry(each.getPath().getName(), each.getModificationTime()) for each in system.listStatus(path))

    def usage(self, uri: str) -> Usage:
        """The usage of a folder. Object stores know no time of a folder, so the times of its files count."""
        system, path = self._at(uri)
        found = system.listFiles(path, True)
        files = length = newest = 0
        while found.hasNext():
            status = found.next()
            newest = max(newest, status.getModificationTime())
            if not status.getPath().getName().startswith(("_", ".")):
                files += 1
                length += status.getLen()
        return Usage(files, length, newest)

    def read_text(self, uri: str) -> str:
        """The content of a file. Raises py4j's Py4JJavaError when it is not there."""
        system, path = self._at(uri)
        stream = system.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, uri: str, text: str) -> None:
        """Write a file, in place of one that is there."""
        system, path = self._at(uri)
        self._write(system, path, text, overwrite=True)

    def create(self, uri: str, text: str) -> None:
        """Make a file appear with all its content, or not at all.

        It is written beside its place and renamed, as Spark's own checkpoints are. Raises AlreadyThere; on an object
        store without an atomic rename only as long as no two programs create the same file at the same moment. Hadoop
        renames local files in two steps (look, then rename), below a viewfs, too; named directly, they get a link.
        """
        _, path = self._at(uri)
        context = self._hadoop.fs.FileContext.getFileContext(path.toUri(), self._conf)
        system = path.getFileSystem(self._conf)
        aside = self._hadoop.fs.Path(path.getParent(), f".{path.getName()}.{secrets.token_hex(8)}.tmp")
        self._write(system, aside, text, overwrite=False)
        try:
            if system.getScheme() == "file":
                link, existing = (self._java.io.File(each.toUri().getPath()).toPath() for each in (path, aside))
                self._java.nio.file.Files.createLink(link, existing)
            else:
                nothing = self._gateway.new_array(self._hadoop.fs.Options.Rename, 0)
                context.rename(aside, path, nothing)
        except Py4JJavaError as problem:
            if "AlreadyExists" in problem.java_exception.getClass().getName():
                raise AlreadyThere(uri) from None
            raise
        finally:
            system.delete(aside, False)
            system.delete(self._hadoop.fs.Path(path.getParent(), f".{aside.getName()}.crc"), False)

    def _write(self, system: Any, path: Any, text: str, *, overwrite: bool) -> None:
        stream = system.create(path, overwrite)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, uri: str) -> None:
        """Delete a file or a folder with all it holds; nothing happens if it is not there."""
        system, path = self._at(uri)
        system.delete(path, True)
