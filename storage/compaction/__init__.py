"""Log compaction: the choice of a log, the pass over its records, the swap of segments.

- `cleaner_manager.py` selects the log and the offsets of a pass, and swaps the segments afterwards.
- `cleaner.py` is the pass; `offset_map.py` maps each key to its last offset.
- `record_filter.py` removes records from a batch; `transaction_filter.py` decides about aborted data and markers.

`broker/upkeep/compaction.py` says when and where a pass runs; `broker/upkeep/cleaner_process.py` is the other process.
"""
