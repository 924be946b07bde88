"""Bytes to values and back: messages, record batches, frames. No I/O and no clock."""
