"""The paths and payloads of the znodes of delegation tokens, as Apache Kafka 3.9 in ZooKeeper mode has them.

A znode has one token without its HMAC: each broker computes that from the id, with `delegation.token.secret.key`. A
notification is the id of a token that has changed. Principals are "User:alice", percent-encoded in the payload.

*Source*: kafka 3.9.1 `DelegationTokenManagerZk.scala` (toJsonCompatibleMap, fromBytes), `ZkData.scala`.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from barnabas.controller.sanitizer import desanitize, sanitize
from barnabas.controller.znodes import DamagedZnode, decode_object, encode_object, text_of

TOKENS: Final = "/delegation_token/tokens"
TOKEN_CHANGES: Final = "/delegation_token/token_changes"
TOKEN_CHANGE_PREFIX: Final = "token_change_"

TOKEN_PATHS: Final = (TOKEN_CHANGES, TOKENS)
"""Znodes that exist, with their parents, in each cluster with delegation tokens
(`KafkaZkClient.createDelegationTokenPaths`)."""

_VERSION: Final = 3
_FIRST_VERSION_WITH_REQUESTER: Final = 3
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_TIMESTAMP_MAX: Final = 2**63 - 1


class DelegationToken(NamedTuple):
    """A delegation token: its owner, the principal that has requested it, and those that may renew it besides the
    owner. Timestamps are in ms since the epoch: it expires at `expiry_timestamp_ms`, which can be moved until
    `max_timestamp_ms`.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiry_timestamp_ms: int


def is_token_id(text: str) -> bool:
    """Whether a text may be a token's id, and so the name of its znode. Kafka's ids are UUIDs in URL-safe base64."""
    return _TOKEN_ID.fullmatch(text) is not None


def token_path(token_id: str) -> str:
    """The path of a token's znode."""
    return f"{TOKENS}/{token_id}"


def encode_token(token: DelegationToken) -> bytes:
    """The payload of a token's znode, with the fields in Kafka's order."""
    return encode_object(
        {
            "issueTimestamp": token.issue_timestamp_ms,
            "renewers": [sanitize(renewer) for renewer in token.renewers],
            "tokenRequester": sanitize(token.requester),
            "tokenId": token.token_id,
            "owner": sanitize(token.owner),
            "expiryTimestamp": token.expiry_timestamp_ms,
            "maxTimestamp": token.max_timestamp_ms,
            "version": _VERSION,
        }
    )


def decode_token(token_id: str, payload: bytes) -> DelegationToken:
    """The token in a znode. Before version 3 a token was always requested by its owner (KIP-373). Raises:
    DamagedZnode, also if the payload is that of another token."""

    def read(fields: dict[str, Any]) -> DelegationToken:
        version = fields["version"]
        if version not in range(1, _VERSION + 1):
            raise ValueError(f"unsupported version {version!r}")
        if fields["tokenId"] != token_id:
            raise ValueError("it is the content of another token")
        owner = _principal(fields["owner"])
        return DelegationToken(
            token_id,
            owner,
            _principal(fields["tokenRequester"]) if version >= _FIRST_VERSION_WITH_REQUESTER else owner,
            tuple(map(_principal, fields["renewers"])),
            _timestamp(fields["issueTimestamp"]),
            _timestamp(fields["maxTimestamp"]),
            _timestamp(fields["expiryTimestamp"]),
        )

    return decode_object(token_path(token_id), payload, read)


def _principal(value: object) -> str:
    principal = desanitize(text_of(value))
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a principal")
    return principal


def _timestamp(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _TIMESTAMP_MAX:
        raise TypeError(f"{value!r} is not a timestamp")
    return value


def encode_token_change(token_id: str) -> bytes:
    """The payload of a notification that a token has changed."""
    return token_id.encode()


def decode_token_change(path: str, payload: bytes) -> str:
    """The id of the token in a notification. Raises: DamagedZnode."""
    token_id = payload.decode(errors="replace")
    if not is_token_id(token_id):
        raise DamagedZnode(path, payload, "expected the id of a delegation token")
    return token_id
