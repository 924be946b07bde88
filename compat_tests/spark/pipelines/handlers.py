"""A handler for retry_and_dead_letter: each key says when it succeeds. Workers import it."""

from spark_examples.retry_handler import Hopeless, Record


def succeed_at(record: Record) -> bytes | None:
    """`KEY-N` succeeds at attempt N; `KEY-never` and `KEY-hopeless` do not; `KEY-silent` wants no result."""
    wanted = (record.key or b"").decode().rpartition("-")[2]
    if wanted == "silent":
        return None
    if wanted == "hopeless":
        raise Hopeless("no use")
    if wanted == "never" or record.attempt < int(wanted):
        raise RuntimeError(f"attempt {record.attempt}")
    return (record.value or b"").upper()
