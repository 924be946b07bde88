"""A broker's jobs in threads, executed at once: for tests that have no event loop."""

from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.storage.segment_removal import retain
from barnabas.storage.truncation import Cut, LogTruncation


def flush(log: PartitionLog) -> None:
    """Flush everything. Raises the StorageError, if the disk refused."""
    task = log.prepare_flush()
    if task is not None:
        task.run()
        log.complete_flush(task)
        log.check()
        if task.error is not None:
            raise task.error


def run_flushes(manager: LogManager, now_ms: int) -> int:
    """Flush the logs that are due; returns the number of flushes."""
    count = 0
    for log in manager.logs_to_flush(now_ms):
        task = log.prepare_flush(includes_active_segment=log.active_segment_is_due(now_ms))
        if task is not None:
            task.run()
            log.complete_flush(task)
            count += 1
    return count


def run_retention(manager: LogManager, now_ms: int) -> int:
    """Delete old segments of all logs; returns their number."""
    return sum(retain(log, now_ms) for log in manager.logs)


def truncate(log: PartitionLog, offset: int, *, starts_anew: bool = False) -> bool:
    """Truncate one log, without writing checkpoints; returns whether there was anything to remove."""
    truncation = LogTruncation.begin(log, offset, starts_anew=starts_anew)
    if truncation is None:
        return False
    truncation.run()
    truncation.complete()
    return True


def truncate_with_checkpoints(manager: LogManager, log: PartitionLog, offset: int) -> None:
    """Truncate one log. Raises the StorageError, if the disk refused."""
    truncations = manager.truncations([Cut(log, offset)])
    truncations.run()
    truncations.complete()
    for error in truncations.errors.values():
        raise error
