"""One Spark for all tests of the folder, and another one after a test that failed.

A test that is interrupted while it waits for Java, as by its time limit, leaves an answer that nobody has read. PySpark
would take that for the answer to the next request, or wait for it as long as Java works.
"""

from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


class SharedSpark:
    """`start` begins a session, with a Java process where there is none."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._may_be_out_of_step = False

    def session(self) -> SparkSession:
        """The session, a new one where the former may be out of step."""
        if self._may_be_out_of_step:
            self._kill()
        if self._session is None:
            self._session = self._start()
        return self._session

    def has_failed(self) -> None:
        """A test has failed that uses the session."""
        self._may_be_out_of_step = True

    def stop(self) -> None:
        """The end of all tests."""
        if self._may_be_out_of_step:
            self._kill()
        elif self._session is not None:
            self._session.stop()
        self._session = None

    def _kill(self) -> None:
        """End Java, and have PySpark know neither it nor what belonged to it. Nothing is asked of Java."""
        gateway: Any = SparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.communicate()
            gateway.shutdown()
        context: Any = SparkContext._active_spark_context
        if context is not None:
            context._jsc = None
            context.stop()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        self._session = None
        self._may_be_out_of_step = False
