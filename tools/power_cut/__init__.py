"""Power cuts: a file system of its own for the broker, which stops at an instant and forgets what was not synced."""
