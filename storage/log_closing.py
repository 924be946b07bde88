"""The clean shutdown of one log: writes the files that the next start would otherwise rebuild from the batches.

`log_directory` closes all logs of a directory.
"""

from __future__ import annotations

from barnabas.storage.checkpoints import LEADER_EPOCH_FILE, encode_leader_epochs
from barnabas.storage.errors import StorageError
from barnabas.storage.files import write_file
from barnabas.storage.flush import FlushTask
from barnabas.storage.log import PartitionLog


def prepare_close(log: PartitionLog) -> FlushTask | None:
    """Write index files and snapshot, and capture the flush for a clean shutdown; None if there is nothing to flush.
    After `complete_flush` the log must not be used. If the disk has no space for these files, the flush takes place
    nevertheless. Blocking.
    """
    log.check()
    local = log.local
    if local.segments[-1].offset_index is not None or log.recovery_point < log.log_end_offset:
        try:
            _write_hints(log)
        except StorageError:
            log.check()
            local.durability.lacks_hints = True
    return log.prepare_flush()


def _write_hints(log: PartitionLog) -> None:
    log.local.write_active_indexes(log.config.index_interval_bytes)
    if not log.local.segments[-1].size:
        _write_missing_epochs(log)
    if log.producers.lacks_snapshot(log.log_end_offset, log.log_start_offset):
        log.producers.take_snapshot(log.log_end_offset, log.producer_state)


def _write_missing_epochs(log: PartitionLog) -> None:
    """Write `leader-epoch-checkpoint` if it is missing: Kafka expects it beside a segment without records. It is not
    synced, as it is not needed after a power cut.
    """
    files, path, epochs = log.context.cache.files, f"{log.directory}/{LEADER_EPOCH_FILE}", log.known_epochs
    with log.local.health.refusing_if(f"closing {log.directory}"):
        if epochs is not None and not files.exists(path):
            write_file(files, path, encode_leader_epochs(epochs.entries))


def is_on_disk(log: PartitionLog) -> bool:
    """Whether everything written is flushed, so that the next start need not check the log."""
    return log.failure is None and log.local.durability.is_complete(log.log_end_offset)
