"""The logs of a broker: partition logs on disk, and the log manager that owns them.

`recovery/` loads logs at the start, `compaction/` compacts them, `check/` checks a log directory offline. Modules
import each other without circles, and receive the disk and the clock as arguments.

All logs of a broker:

- `log_manager.py` opens, recovers, creates, deletes, flushes and closes the logs.
- `log_directories.py` has the entries of `log.dirs`, in use and missing; `known_directories.py` tells a missing one
  from a new one; `lost_logs.py` records logs whose disk was replaced.
- `log_directory.py` is one log directory, with a table of its files; `log_context.py` is the state its logs share.
- `checkpoints.py` codes Kafka's text files; `directory_checkpoints.py` reads and writes those of a log directory.
- `deletions.py` unlinks files of deleted segments and logs when no read uses them any more.

One log:

- `log.py` has the rules of appends and reads, and the offsets; `local_log.py` keeps the batches in files.
- `loaded_log.py` is what a log begins with, `config.py` its settings, `partition_metadata.py` the topic id of its
  directory, `log_health.py` the error that took it offline.
- Appends: `validation.py` checks produced batches, `replicated_batches.py` those that a follower fetched.
- Producers: `log_producers.py` keeps the state and snapshots; `producer_state.py` checks duplicates, sequences and
  transactions (pure); `producer_snapshot.py` codes snapshots; `producer_builder.py` rebuilds the state.
- Leader epochs: `leader_epochs.py` is the history; `leader_epochs_file.py` loads or rebuilds it.
- Reads: `log_reader.py` locates an offset; `segment_reader.py` reads the bytes, in a thread if the page cache lacks
  them; `file_records.py` leaves them to sendfile; `timestamps.py` searches by timestamp.
- Flushes: `durability.py` has the recovery point, `flush.py` is one flush; `broker/replication/flusher.py` says when.
- `truncation.py` truncates many logs with one write of the checkpoints; `broker/replication/fetcher.py` says where.
- `retention.py` counts the segments to delete, `segment_removal.py` removes them, `segment_times.py` reads timestamps
  for that and for compaction, in threads; `broker/upkeep/retention.py` says when.
- `log_closing.py` writes at a clean stop what the next start would otherwise rebuild.

Files, each format in the docstring of its module:

- `segment.py` is a file of batches with its indexes: `offset_index.py`, `time_index.py`, `txn_index.py`.
- `scan.py` reads a segment from end to end, for recovery and compaction.
- `files.py` is the interface to a disk, and `os_files.py` the real one, the only module that imports `os`.
- `descriptors.py` limits the open files. `errors.py` says which errors of a disk are final (`is_passing`).

A new setting of logs is a field of `LogConfig` and a row in `broker/configuration/tables/topics.py`. A new checkpoint
of offsets is a name in `checkpoints`, an entry in `OFFSET_CHECKPOINTS` and in the table of `log_directory`, and its
reading and writing in `directory_checkpoints`. A new file of a log has to be known to `storage/check/directory.py`.
"""
