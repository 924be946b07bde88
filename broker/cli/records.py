"""Records as lines and back: templates of `consume --format`, JSON of `consume --json` and `produce --json`. No I/O."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

import typer

from barnabas.broker.client.consumer import ConsumedBatch
from barnabas.wire.record_batch import TimestampType
from barnabas.wire.records import Headers, Record

Writer = Callable[[ConsumedBatch], bytes]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_FIELD = re.compile(r"\{(\w+)\}")
_UNCLOSED = re.compile(r"\{\w+|\{$")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([\\ntr0]))")
_ESCAPED = {"\\": "\\", "n": "\n", "t": "\t", "r": "\r", "0": "\0"}
ESCAPES = r"\t, \n, \r, \0, \\ and \xHH"
_TERMINAL_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


def _text(data: bytes | None) -> bytes:
    return b"null" if data is None else data


def _headers_text(headers: Headers) -> bytes:
    return b",".join(name.encode("utf-8", "surrogateescape") + b":" + _text(value) for name, value in headers)


# By column: a call per record and field would take longer than decoding the record.
_COLUMNS: dict[str, Callable[[ConsumedBatch], Iterable[bytes]]] = {
    "topic": lambda batch: repeat(batch.topic.encode(), len(batch.records)),
    "partition": lambda batch: repeat(b"%d" % batch.partition, len(batch.records)),
    "offset": lambda batch: [b"%d" % record.offset for record in batch.records],
    "timestamp": lambda batch: [b"%d" % record.timestamp for record in batch.records],
    "key": lambda batch: [b"null" if record.key is None else record.key for record in batch.records],
    "value": lambda batch: [b"null" if record.value is None else record.value for record in batch.records],
    "headers": lambda batch: [_headers_text(record.headers) for record in batch.records],
}
FIELDS = tuple(_COLUMNS)
JSON_FIELDS = (*FIELDS, "timestamp_type")


def unescaped(text: str) -> str:
    """The text of an option with its `ESCAPES` replaced; bytes that are not ASCII become the surrogates of
    `os.fsencode`. Other characters after a backslash stay as they are.
    """

    def meant(match: re.Match[str]) -> str:
        return os.fsdecode(bytes.fromhex(match[1])) if match[1] else _ESCAPED[match[2]]

    return _ESCAPE.sub(meant, text)


def formatter(template: str) -> Writer:
    """Formats records as text by a template; null is printed as `null`, and bytes are printed unchanged.

    Errors: a usage error for an unknown field, for one whose brace is not closed, and for a template without any.
    """
    known = " ".join(f"{{{field}}}" for field in FIELDS)
    literals, fields = [], []
    for number, part in enumerate(_FIELD.split(unescaped(template))):
        if number % 2 == 0:
            if unclosed := _UNCLOSED.search(part):
                raise typer.BadParameter(f"{unclosed[0]!r} lacks its closing brace", param_hint="--format")
            literals.append(part.encode("utf-8", "surrogateescape"))
        elif part in _COLUMNS:
            fields.append(_COLUMNS[part])
        else:
            raise typer.BadParameter(f"records have no {{{part}}}, only {known}", param_hint="--format")
    if not fields:
        raise typer.BadParameter(f"{template!r} has no field of a record: {known}", param_hint="--format")

    def write(batch: ConsumedBatch) -> bytes:
        count = len(batch.records)
        columns: list[Iterable[bytes]] = [repeat(literals[0], count)]
        for field, literal in zip(fields, literals[1:], strict=True):
            columns += (field(batch), repeat(literal, count))
        return b"".join(chain.from_iterable(zip(*columns, strict=True)))

    return write


def json_lines(batch: ConsumedBatch) -> bytes:
    """The records as JSON objects, one on each line; keys and values that are not UTF-8 become {"base64": ...}."""
    return b"".join(json.dumps(_document(batch, record)).encode() + b"\n" for record in batch.records)


def _document(batch: ConsumedBatch, record: Record) -> dict[str, Any]:
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return {
        "topic": batch.topic,
        "partition": batch.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if is_append_time else "CreateTime",
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }


def _to_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def for_terminal(write: Writer) -> Writer:
    """The output of `write`, without control characters for a terminal (all but tab and line feed)."""

    def harmless(batch: ConsumedBatch) -> bytes:
        return _TERMINAL_CONTROLS.sub(lambda match: b"\\x%02x" % match[0][0], write(batch))

    return harmless


class NewRecord(NamedTuple):
    """A record to be written; None if the producer decides: the partition by the key, the time by the clock."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Parses the lines of `produce`: key and value, maybe headers. Errors: ValueError that continues "line N"."""

    key: bytes | None = None
    key_separator: bytes | None = None
    null_value: bytes | None = None
    has_headers: bool = False

    def __call__(self, line: bytes) -> NewRecord:
        """The record of a line without its end."""
        headers: Headers = ()
        if self.has_headers:
            text, tab, line = line.partition(b"\t")
            if not tab:
                raise ValueError("has no tab after its headers")
            headers = [_header(entry) for entry in text.split(b",") if entry]
        key = self.key
        if self.key_separator is not None:
            key, separator, line = line.partition(self.key_separator)
            if not separator:
                shown = self.key_separator.decode("utf-8", "backslashreplace")
                raise ValueError(f"has no key separator {shown!r}")
        return NewRecord(key, None if line == self.null_value else line, headers)


def _header(entry: bytes) -> tuple[str, bytes]:
    name, colon, value = entry.partition(b":")
    if not colon:
        raise ValueError(f"has a header {entry!r} that is not NAME:VALUE")
    return name.decode("utf-8", "surrogateescape"), value


def record_from_json(line: bytes) -> NewRecord:
    """The record of a line of `consume --json`. Errors: ValueError that continues "line N".

    Any field may be missing; topic, offset and timestamp_type are ignored. Unknown fields are refused: otherwise a
    mistyped one would be lost.
    """
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object with key, value, headers, timestamp and partition")
    if unknown := document.keys() - JSON_FIELDS:
        raise ValueError(f"has the unknown field {min(unknown)!r}; known are {', '.join(JSON_FIELDS)}")
    headers = document.get("headers") or []
    if not isinstance(headers, list) or not all(
        isinstance(header, list) and len(header) == 2 and isinstance(header[0], str) for header in headers
    ):
        raise ValueError('has headers that are not [["NAME", "VALUE"], ...]')
    return NewRecord(
        _from_json("key", document.get("key")),
        _from_json("value", document.get("value")),
        [(_name(name), _from_json("header", value)) for name, value in headers],
        _number("timestamp", document.get("timestamp"), -1, _INT64_MAX),
        _number("partition", document.get("partition"), 0, _INT32_MAX),
    )


def _from_json(field: str, value: object) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return _encoded(field, value)
        case {"base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError as error:
                raise ValueError(f"has a {field} that is not base64: {error}") from error
    raise ValueError(f'has a {field} that is neither text, null nor {{"base64": "..."}}')


def _name(text: str) -> str:
    """A header's name, after a check that it can be encoded."""
    _encoded("header", text)
    return text


def _encoded(field: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"has a {field} with half of a surrogate pair, which is no text") from error


def _number(field: str, value: object, lowest: int, highest: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return value
    raise ValueError(f"has a {field} that is no whole number from {lowest} to {highest}")
