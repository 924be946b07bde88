"""The logs of a broker: partition logs on disk, and the log manager that owns them."""
