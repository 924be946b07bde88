"""Bytes to values and back: messages, record batches, frames. No I/O and no clock.

- Frames and messages: `framing.py` splits a connection's bytes; `headers.py` has the headers of requests and responses;
  `codec.py` reads and writes the messages of `messages/` by functions that are compiled from the text that
  `reader_source.py` and `writer_source.py` write, over `function_source.py`.
- Batches: `record_batch.py` is the header, all that a broker reads of an ordinary batch. `records.py` reads and builds
  records, over `record_bodies.py` (where each record begins and ends) and `varint.py`; `control_records.py` has the
  markers of transactions, and `record_timestamps.py` looks records up by time. `compression.py` has the four codecs,
  with `xerial.py` for snappy and `zstd_stream.py` for zstd; `crc.py` has the checksum.
- Words of all of them: `errors.py` (Kafka's error codes), `names.py`, `primitives.py`.
"""
