"""One partition's bytes on one disk, and the log manager above it."""
