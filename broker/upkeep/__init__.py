"""The periodic work of a broker: retention, compaction, checkpoints, disk space.

- `housekeeping.py` repeats jobs; `log_jobs.py` lists those on logs, with their intervals.
- `retention.py` deletes segments; `segment_times.py` reads the timestamps that retention and compaction need.
- `compaction.py` selects logs and swaps results in; `cleaner_process.py` runs large passes in a process of their own.
- `disk_space.py` finds directories that are too full for clients' records.

A new job on logs is a line in `LogJobs.schedule`; those of coordinators are in `Parts.schedule_expirations`
(`broker/parts.py`). What is deleted or kept: `storage/retention.py`, `storage/compaction/`.
"""
