"""The logs of a broker: partition logs on disk, and the log manager that owns them.

From the bottom up:

- `files` is the disk, `descriptors` the open files, `segment` one file of batches with its indexes, `local_log` the
  segments of one log, `log_reader` and `segment_reader` its reads, `durability` and `flush` its way to the disk.
- `log` is one partition's log. It appends (`validation`, `replicated_batches`, `log_producers`), reads, and keeps the
  offsets. Operations on a log as a whole are beside it: `truncation`, `segment_removal`, `log_closing`, `compaction/`.
- `log_directory` is one entry of `log.dirs` with its checkpoints, `log_directories` all of them, `recovery/` loads
  their logs, and `log_manager` is what a broker uses.

A module imports from those below it, never in a circle.
"""
