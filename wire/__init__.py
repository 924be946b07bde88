"""Bytes to values and back: messages, record batches, frames. No I/O and no clock.

Frames and messages:

- `framing.py` splits the bytes of a connection into frames; `headers.py` codes the headers of requests and responses.
- `codec.py` decodes and encodes messages, by a function per message and version that is compiled on first use.
- `reader_source.py` and `writer_source.py` write the text of these functions, over `function_source.py`.
- `messages/` has a generated module per API, over the base classes of `schema.py`; `api_table.py` has the API keys.
- `primitives.py` has the variable-length integers of messages; `names.py` has types of plain values, as `TopicId`.
- `errors.py` has Kafka's error codes, and the exceptions that carry them.

Record batches:

- `record_batch.py` is the header, all that a broker reads of an ordinary batch; `crc.py` is the CRC-32C.
- `records.py` reads and builds records; `record_bodies.py` finds where each begins and ends, `varint.py` reads their
  integers, `record_timestamps.py` looks a record up by time.
- `control_records.py` has the markers that end transactions.
- `compression.py` has the codecs, with `xerial.py` for snappy and `zstd_stream.py` for zstd.
"""
