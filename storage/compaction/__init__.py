"""Log compaction: the choice of a log, the pass over its records, the swap of segments."""
