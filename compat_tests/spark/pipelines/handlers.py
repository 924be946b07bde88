"""Handlers for retry_and_dead_letter. Workers import them."""

from barnabas.spark_examples.retry_handler import Hopeless, Record


class Fatal(BaseException):
    """More than the trouble of one record."""


def succeed_at(record: Record) -> bytes | None:
    """`KEY-N` succeeds at attempt N; `KEY-never` and `KEY-hopeless` do not; `KEY-silent` wants no result.

    `KEY-fatal` ends the task.
    """
    wanted = (record.key or b"").decode().rpartition("-")[2]
    if wanted == "silent":
        return None
    if wanted == "fatal":
        raise Fatal("the worker is broken")
    if wanted == "hopeless":
        raise Hopeless("no use")
    if wanted == "never" or record.attempt < int(wanted):
        raise RuntimeError(f"attempt {record.attempt}")
    return (record.value or b"").upper()
