"""Power cuts: the broker runs on a separate file system, which stops suddenly and loses unsynced data."""
