"""Log compaction: which log, which records stay, the swap."""
