"""The responses of verbs, as JSON: brokers, faults, requests, records and groups, and their description in OpenAPI."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.cli.secure_clients import MECHANISM
from barnabas.testing.brokers.cluster import Cluster
from barnabas.testing.control import rules
from barnabas.testing.faults.fault import Hold
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import iter_records
from barnabas.wire.schema import Array, Message

if TYPE_CHECKING:
    from barnabas.broker.cli.secure_clients import Account
    from barnabas.testing.brokers.security import Security
    from barnabas.testing.contents.group import Group
    from barnabas.testing.contents.records import Record
    from barnabas.testing.control.served import Served
    from barnabas.testing.faults.fault import Lasting
    from barnabas.testing.recording.recorded_request import RecordedRequest

Json = dict[str, Any]


def broker(served: Served) -> Json:
    """A broker, or a cluster, in a response."""
    owner = served.owner
    if isinstance(owner, Cluster):
        nodes = [
            {"node": each.number, "address": each.bootstrap_servers, "is_running": each.is_running}
            for each in owner.brokers
        ]
        servers = ",".join(each.bootstrap_servers for each in owner.brokers if each.is_running)
    else:
        number = owner.server.node_id if owner.is_running else None
        servers = owner.bootstrap_servers
        nodes = [{"node": number, "address": servers, "is_running": owner.is_running}]
    return {
        "name": served.name,
        "bootstrap_servers": servers,
        "nodes": nodes,
        "warnings": list(served.warnings),
        "security": None if owner._security is None else security(owner._security),
    }


def security(secured: Security) -> Json:
    """What every client of a secured broker or cluster needs."""
    accounts = [secured.account(name, "") for name in ("admin", "client")]
    return {
        "protocol": "SASL_SSL",
        "mechanism": MECHANISM,
        "users": {account.username: account.password for account in accounts},
        **_authority(accounts[0].ca),
    }


def client_config(account: Account | None, config: Mapping[str, Any]) -> Json:
    """How a client connects: in the words of one client, and for all others."""
    if account is None:
        return {"protocol": "PLAINTEXT", "mechanism": None, "user": None, "password": None, "ca": None, "ca_pem": None,
                "config": dict(config)}  # fmt: skip
    return {
        "protocol": "SASL_SSL",
        "mechanism": MECHANISM,
        "user": account.username,
        "password": account.password,
        **_authority(account.ca),
        "config": dict(config),
    }


def _authority(path: str) -> Json:
    """The file of the authority's certificate, and its content."""
    return {"ca": path, "ca_pem": Path(path).read_text()}


def fault(number: int, found: Lasting) -> Json:
    """A fault, or a group of faults."""
    return {
        "fault": number,
        "description": repr(found).strip("<>"),
        "hits": found.hits,
        "matches": found.matches,
        "held": found.held if isinstance(found, Hold) else None,
        "id": number,
        "left": rules.left(found),
        "rules": found.given if isinstance(found, rules.Rules) else [],
    }


def request(found: RecordedRequest) -> Json:
    """A client's request, and its outcome."""
    asked = found.request
    return {
        "api": asked.api,
        "version": asked.version,
        "client_id": asked.client_id,
        "principal": asked.principal,
        "connection": asked.connection,
        "node": asked.broker,
        "time_ms": found.time_ms,
        "answered_ms": found.answered_ms,
        "outcome": found.outcome,
        "errors": [error.name for error in found.errors],
        "topics": sorted(asked.topics),
        "partitions": [{"topic": topic, "partition": index} for topic, index in sorted(asked.partitions)],
        "groups": sorted(asked.groups),
        "transactional_ids": sorted(asked.transactional_ids),
        "request": message(found.message, asked.version),
        "answer": None if found.answer is None else message(found.answer, asked.version),
    }


def record(found: Record) -> Json:
    """A record in a response."""
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "timestamp_ms": found.timestamp,
        **_bytes("key", found.key),
        **_bytes("value", found.value),
        "headers": [{"name": name, **_bytes("value", content)} for name, content in found.headers],
    }


def group(found: Group) -> Json:
    """A consumer group in a response."""
    return {
        "group": found.group_id,
        "state": found.state,
        "protocol": found.protocol_name,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
            }
            for each in found.members
        ],
        "offsets": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(found.offsets.items())
        ],
        "lag": found.lag,
    }


def message(found: Message, version: int) -> Json:
    """A message of Kafka's protocol, with the fields of a version under their names on Kafka's protocol page; bytes and
    ids are base64, batches are lists of their records.
    """
    return {
        field.name: _value(getattr(found, field.name), field.type, version)
        for field in found.FIELDS
        if field.exists_in(version)
    }


def _value(value: Any, kind: str | Array | type[Message], version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_value(each, kind.element, version) for each in value]
    if isinstance(value, Message):
        return message(value, version)
    if kind == "records":
        return _records(value)
    if kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def _records(batches: Any) -> list[Json] | None:
    """None for bytes that are no batch: a fault may have damaged it."""
    try:
        return [
            {
                "offset": each.offset,
                "timestamp_ms": each.timestamp,
                **_bytes("key", each.key),
                **_bytes("value", each.value),
                "headers": [{"name": name, **_bytes("value", content)} for name, content in each.headers],
            }
            for header in iter_headers(batches)
            for each in iter_records(batches, header)
        ]
    except Exception:  # noqa: BLE001 - after any error, it is no batch
        return None


def _bytes(name: str, value: bytes | memoryview | None) -> Json:
    """Text if the bytes are UTF-8, else base64."""
    if value is None:
        return {name: None}
    try:
        return {name: bytes(value).decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(value).decode()}


# --- in OpenAPI -----------------------------------------------------------------------------------

_TEXT: Final = {"type": "string"}
_TEXT_OR_NONE: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "integer"}
_NUMBER_OR_NONE: Final = {"type": ["integer", "null"]}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_TRUTH: Final = {"type": "boolean"}


def _object(properties: Mapping[str, Any], optional: Sequence[str] = (), does: str = "") -> Json:
    told = {"description": does} if does else {}
    required = [name for name in properties if name not in optional]
    return {"type": "object", **told, "properties": dict(properties), "required": required}


def _list(items: Mapping[str, Any]) -> Json:
    return {"type": "array", "items": dict(items)}


def _several(name: str) -> Json:
    return _list({"$ref": f"#/components/schemas/{name}"})


_HEADERS: Final = _list(_object({"name": _TEXT, "value": _TEXT_OR_NONE, "value_base64": _TEXT}, ["value_base64"]))
_PLACE: Final = {"topic": _TEXT, "partition": _NUMBER}

SHAPES: Final[Mapping[str, Json]] = {
    "Error": _object(
        {"error": _TEXT, "kafka_error": _TEXT, "report": _TEXT, "usage": _TRUTH},
        ["kafka_error", "report", "usage"],
        "The error in one line; Kafka's name of it if it is an error of Kafka; the state of the broker if a wait timed "
        "out; true if the request itself was wrong.",
    ),
    "Index": _object({"barnabas": _TEXT, "openapi": _TEXT, "brokers": _TEXT}),
    "Broker": _object(
        {
            "name": _TEXT,
            "bootstrap_servers": _TEXT,
            "nodes": _list(_object({"node": _NUMBER_OR_NONE, "address": _TEXT, "is_running": _TRUTH})),
            "warnings": _TEXTS,
            "security": {"type": ["object", "null"]},
        },
        does="A broker, or a cluster: bootstrap_servers is for clients, warnings are those of its configuration. "
        "security is null, or has protocol, mechanism, users (passwords by name), ca (the path of the authority's "
        "certificate) and ca_pem (its content).",
    ),
    "ClientConfig": _object(
        {
            "protocol": _TEXT,
            "mechanism": _TEXT_OR_NONE,
            "user": _TEXT_OR_NONE,
            "password": _TEXT_OR_NONE,
            "ca": _TEXT_OR_NONE,
            "ca_pem": _TEXT_OR_NONE,
            "config": {"type": "object"},
        },
        does="How a client connects: config is in the words of the client that was asked for, the rest is for all.",
    ),
    "Brokers": _object({"brokers": _several("Broker")}),
    "Fault": _object(
        {
            "fault": _NUMBER,
            "description": _TEXT,
            "hits": _NUMBER,
            "matches": _NUMBER,
            "held": _NUMBER_OR_NONE,
            "id": _NUMBER,
            "left": _NUMBER,
            "rules": _list({"type": "object"}),
        },
        does="A fault by its number: the requests that it hit (hits), matched (matches) and holds (held). For a fault "
        "in the form of kcl fake: its id, the hits that are left (-1: no limit) and its rules.",
    ),
    "Rules": _object(
        {"id": _NUMBER, "rules": _list({"type": "object"}), "hits": _NUMBER, "left": _NUMBER},
        does="A fault in the form of kcl fake: its id, its rules, its hits, and the hits that are left (-1: no limit).",
    ),
    "Hits": _object({"hits": _NUMBER}),
    "Removed": _object({"removed": _NUMBER}, does="How many faults were removed."),
    "Faults": _object({"faults": _several("Fault")}),
    "Request": _object(
        {
            "api": _TEXT,
            "version": _NUMBER,
            "client_id": _TEXT_OR_NONE,
            "principal": _TEXT,
            "connection": _NUMBER,
            "node": _NUMBER,
            "time_ms": _NUMBER,
            "answered_ms": _NUMBER_OR_NONE,
            "outcome": _TEXT,
            "errors": _TEXTS,
            "topics": _TEXTS,
            "partitions": _list(_object(_PLACE)),
            "groups": _TEXTS,
            "transactional_ids": _TEXTS,
            "request": {"type": "object"},
            "answer": {"type": ["object", "null"]},
        },
        does="A request of a client: outcome is ok, the names of errors, closed, no reply or waiting; request and "
        "answer have the fields of Kafka's protocol.",
    ),
    "Requests": _object(
        {"count": _NUMBER, "requests": _several("Request")}, does="How many there were, and the last of them."
    ),
    "Record": _object(
        {
            **_PLACE,
            "offset": _NUMBER,
            "timestamp_ms": _NUMBER,
            "key": _TEXT_OR_NONE,
            "key_base64": _TEXT,
            "value": _TEXT_OR_NONE,
            "value_base64": _TEXT,
            "headers": _HEADERS,
        },
        ["key_base64", "value_base64"],
        "A record; what is not UTF-8 is null, and in base64 beside it.",
    ),
    "Records": _object({"count": _NUMBER, "records": _several("Record")}),
    "Group": _object(
        {
            "group": _TEXT,
            "state": _TEXT,
            "protocol": _TEXT,
            "members": _list(
                _object(
                    {
                        "member_id": _TEXT,
                        "group_instance_id": _TEXT_OR_NONE,
                        "client_id": _TEXT,
                        "client_host": _TEXT,
                    }
                )
            ),
            "offsets": _list(_object({**_PLACE, "offset": _NUMBER})),
            "lag": _NUMBER_OR_NONE,
        },
        does="A consumer group; offsets are the committed ones, lag is how far they are behind the ends of their "
        "partitions, null while one of these has no leader, and for a group that does not exist.",
    ),
    "Methods": _object({"methods": _list(_object({"name": _TEXT, "signature": _TEXT}))}),
    "Result": _object(
        {"result": {"type": ["object", "array", "string", "integer", "null"], "items": {"type": ["object", "string"]}}},
        does="What a method of kfake returns; null for nothing.",
    ),
    "GroupInfo": _object(
        {
            "group": _object(
                {
                    "Group": _TEXT,
                    "State": _TEXT,
                    "Epoch": _NUMBER,
                    "Members": _list(
                        _object(
                            {
                                "MemberID": _TEXT,
                                "InstanceID": _TEXT_OR_NONE,
                                "ClientID": _TEXT,
                                "ClientHost": _TEXT,
                                "SubscribedTopics": _TEXTS,
                                "Assignment": {"type": "object"},
                            }
                        )
                    ),
                    "Commits": {"type": "object"},
                }
            )
        },
        does="A consumer group in the form of kfake: its members' partitions by topic, commits by topic and partition.",
    ),
    "Topics": _object({"topics": _TEXTS}),
    "Clock": _object({"now_ms": _NUMBER, "monotonic_ms": _NUMBER}),
    "Snapshot": _object({"snapshot": _NUMBER}),
    "Members": _object({"members": _TEXTS}),
    "Sessions": _object({"sessions": _NUMBER}),
    "Node": _object({"node": _NUMBER}),
    "LeaderEpoch": _object({"leader_epoch": _NUMBER}),
    "Done": _object({}, does="It is done."),
}
