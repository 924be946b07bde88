"""The offline check of a log directory."""
