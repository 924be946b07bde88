"""The fuzzing targets of keys, certificates and their principals, and of ACLs and delegation tokens.

Parts of an input that are several texts are separated by zero bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from barnabas.broker.api.context import RequestContext
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session
from barnabas.broker.security.acls.administration import AclAdministration
from barnabas.broker.security.acls.authorizer import AclAuthorizer
from barnabas.broker.security.acls.bindings import entry_of, pattern_of, resource_of, stored
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.security.tls import stores
from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.key_stores import StoreSettings, load_key_store, load_trust_store
from barnabas.broker.security.tls.principal_mapping import NoMatchingRule, PrincipalMapping, subject_name
from barnabas.controller.acl_znodes import (
    ACL_CHANGES,
    LITERAL,
    PREFIXED,
    AclResource,
    StoredAcl,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from barnabas.controller.token_znodes import (
    TOKEN_CHANGES,
    DelegationToken,
    decode_token,
    decode_token_change,
    encode_token,
)
from barnabas.controller.znodes import DamagedZnode
from barnabas.wire import codec, messages
from barnabas.wire.errors import ApiError, ProtocolError
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from tools.fuzz.login_targets import NOW_S, signing_key
from tools.fuzz.target import NOW_MS, Target, check_text, given, run_now

# --- keys and certificates ------------------------------------------------------------------------


@cache
def _certificate() -> Any:
    import datetime

    from cryptography import x509
    from cryptography.x509.oid import NameOID

    attributes = ((NameOID.COMMON_NAME, "user, \\ "), (NameOID.ORGANIZATION_NAME, "Example"))
    name = x509.Name([x509.NameAttribute(*each) for each in attributes])
    at = datetime.datetime.fromtimestamp(NOW_S, datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(7)
    builder = builder.not_valid_before(at).not_valid_after(at + datetime.timedelta(days=1))
    return builder.public_key(signing_key().public_key()).sign(signing_key(), None)


@cache
def _pem() -> tuple[bytes, bytes]:
    """A private key, and its certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = signing_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key, _certificate().public_bytes(Encoding.PEM)


def _store(data: bytes) -> None:
    """A key store or trust store, as commands and brokers read it. The first byte chooses."""
    choice, content = data[0] % 4 if data else 0, data[1:]
    try:
        if choice == 0:
            stores.trusted_as_pem(content, "")
        elif choice == 1:
            stores.identity_as_pem(content, "")
        else:
            key, _, certificates = content.decode(errors="replace").partition("\0")
            settings = StoreSettings("keystore", "", "PEM", None, None, certificates, key if choice == 3 else None)
            (load_trust_store if choice == 2 else load_key_store)(settings)
    except (stores.StoreError, TlsConfigError) as error:
        check_text(str(error))


def _store_seeds() -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    key, certificate = _pem()
    other = pkcs12.serialize_key_and_certificates(None, None, None, [_certificate()], NoEncryption())
    whole = pkcs12.serialize_key_and_certificates(b"a", signing_key(), _certificate(), None, NoEncryption())
    encrypted = key.replace(b"-----\nM", b"-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nM")
    return [
        *(bytes([choice]) + content for choice in (0, 1) for content in (key + certificate, other, whole)),
        b"\1" + encrypted + certificate,
        b"\2\0" + certificate + certificate,
        b"\3" + key + b"\0" + certificate,
        b"\3" + key.replace(b"\n", b" ") + b"\0" + certificate.replace(b"\n", b" "),
        b"\0\xfe\xed\xfe\xed\0\0\0\2",
    ]


def _client_certificate(data: bytes) -> None:
    """The certificate of a client, and its subject alone."""
    with contextlib.suppress(NoMatchingRule):
        check_text(_mapping().principal_of(data))
    try:
        check_text(subject_name(data))
    except ValueError:
        return


@cache
def _mapping() -> PrincipalMapping:
    return PrincipalMapping("RULE:CN=(.*?),O=Example/$1/L, DEFAULT")


def _certificate_seeds() -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate = _certificate()
    return [certificate.public_bytes(Encoding.DER), certificate.subject.public_bytes()]


def _principal_rules(data: bytes) -> None:
    """Rules of an administrator, and the subject of a certificate."""
    rules, _, name = data.decode(errors="replace").partition("\0")
    try:
        PrincipalMapping(rules[:200]).apply(name[:20])
    except (TlsConfigError, NoMatchingRule) as error:
        check_text(str(error))


_RULES: Final = (
    b"RULE:^CN=(.*?),OU=(?<unit>[^,]*)$/$1@${unit}/L, RULE:^CN=(\\w+).*$/$1/U, DEFAULT\0CN=a,OU=b",
    b"RULE:.*/\\$0$0/\0CN=a",
    b"DEFAULT\0CN=a",
    b"RULE:(a{1,3}){2}/$11/\0aaaa",
    b"RULE:a{1000000000000}/x/\0aaaa",
)


# --- ACLs -----------------------------------------------------------------------------------------


class _Repository:
    """The ACLs of one input, in memory."""

    count = 0
    held_bytes = 0

    def __init__(self) -> None:
        self.acls: dict[AclResource, frozenset[StoredAcl]] = {}

    def subscribe(self, listener: Callable[[AclResource], None]) -> None:
        self._tell = listener

    def acls_of(self, resource: AclResource) -> frozenset[StoredAcl]:
        return self.acls.get(resource, frozenset())

    async def change(self, resource: AclResource, decide: Callable[[Any], frozenset[StoredAcl]]) -> None:
        acls = decide(self.acls_of(resource))
        if decode_acls(resource, encode_acls(acls)) != acls:
            raise AssertionError(f"the znode of {resource} is read differently after it is written")
        for acl in acls:
            if stored(entry_of(acl)) != acl:
                raise AssertionError(f"{acl} is another ACL after it is read")
        if resource_of(pattern_of(resource)) != resource:
            raise AssertionError(f"{resource} is another pattern after it is read")
        self.acls[resource] = acls
        self._tell(resource)


def _acl_requests(data: bytes) -> None:
    """CreateAcls, DescribeAcls and DeleteAcls of one connection, by their handlers; two bytes choose API and version,
    two have the length."""
    repository = _Repository()
    authorizer = AclAuthorizer(["User:admin"])
    acls = AclAdministration(repository, authorizer)  # type: ignore[arg-type]
    services: Any = SimpleNamespace(acls=acls, authorizer=authorizer)
    session = Session(None, ListenerContext("CLIENTS"), 1, client_host="127.0.0.1", principal="User:admin")
    position = 0
    while len(data) - position >= 4:
        key, version = 29 + data[position] % 3, 1 + data[position + 1] % 3
        size = int.from_bytes(data[position + 2 : position + 4], "big")
        body = data[position + 4 : position + 4 + size]
        position += 4 + size
        try:
            request, _ = codec.decoder(messages.api(key).request_class, version)(memoryview(body), 0)
            answer: Any = load_handler(key).handle(request, RequestContext(services, session, key, version, 1, None))
            codec.encode(run_now(answer), version)
        except (ProtocolError, CloseConnection, ApiError):
            continue
    for resource in repository.acls:
        authorizer.authorize("User:user", "10.0.0.1", Operation.READ, pattern_of(resource).resource_type, resource.name)


def _acl_request_seeds() -> list[bytes]:
    creations = [
        AclCreation(
            resource_type=resource_type,
            resource_pattern_type=pattern_type,
            resource_name="kafka-cluster" if resource_type is ResourceType.CLUSTER else name,
            principal="User:user",
            host=host,
            operation=operation,
            permission_type=permission_type,
        )
        for resource_type, pattern_type, name, host, operation, permission_type in (
            (ResourceType.TOPIC, 3, "t", "*", Operation.READ, 3),
            (ResourceType.TOPIC, 4, "pre", "10.0.0.1", Operation.ALL, 2),
            (ResourceType.CLUSTER, 3, "", "*", Operation.ALTER, 3),
            (ResourceType.USER, 3, "u", "*", Operation.DESCRIBE_TOKENS, 3),
        )
    ]
    filters: dict[str, Any] = {"resource_type_filter": 2, "pattern_type_filter": 2, "resource_name_filter": "t"}
    any_entry: dict[str, Any] = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}

    def sent(request: Any, version: int) -> bytes:
        body = codec.encode(request, version)
        return bytes([request.API_KEY - 29, version - 1]) + len(body).to_bytes(2, "big") + body

    seeds = []
    for version in (1, 2, 3):
        allowed = [each for each in creations if version >= 3 or each.resource_type != ResourceType.USER]
        created = sent(CreateAclsRequest(creations=allowed), version)
        described = sent(DescribeAclsRequest(**filters, **any_entry), version)
        deleted = sent(DeleteAclsRequest(filters=[DeleteAclsFilter(**filters, **any_entry)]), version)
        seeds.append(created + described + deleted)
    return seeds


def _acl_znodes(data: bytes) -> None:
    """The ACLs of a resource, or the notification of a change; the first byte chooses."""
    choice, payload = data[0] % 4 if data else 0, data[1:]
    try:
        if choice < 2:
            resource = AclResource("Topic", (LITERAL, PREFIXED)[choice], "t")
            acls = decode_acls(resource, payload)
            entries = [entry_of(acl) for acl in acls]
            if decode_acls(resource, encode_acls(acls)) != acls:
                raise AssertionError("the ACLs are read differently after they are written")
            AclAuthorizer().replace(resource, acls)
            sorted(entries)
        else:
            path = f"{ACL_CHANGES[(LITERAL, PREFIXED)[choice - 2]]}/acl_changes_0000000001"
            found = decode_acl_change(path, payload)
            if found is not None and decode_acl_change(path, encode_acl_change(found)) != found:
                raise AssertionError(f"the change of {found} is read differently after it is written")
    except DamagedZnode as error:
        str(error)


def _acl_znode_seeds() -> list[bytes]:
    acls = encode_acls([StoredAcl("User:user", "Allow", "Read", "*"), StoredAcl("User:*", "Deny", "All", "10.0.0.1")])
    changes = [encode_acl_change(AclResource("TransactionalId", each, "a:b")) for each in (LITERAL, PREFIXED)]
    return [b"\0" + acls, b"\1" + acls, b"\2" + changes[0], b"\3" + changes[1], b"\0"]


def _token_znodes(data: bytes) -> None:
    """A delegation token, or the notification of a change; the first byte chooses."""
    payload = data[1:]
    try:
        if not data or data[0] % 2:
            token_id = decode_token_change(f"{TOKEN_CHANGES}/token_change_0000000001", payload)
            check_text(token_id)
            return
        token = decode_token("abc", payload)
    except DamagedZnode as error:
        str(error)
        return
    if decode_token("abc", encode_token(token)) != token:
        raise AssertionError("a token is read differently after it is written")


def _token_znode_seeds() -> list[bytes]:
    token = DelegationToken("abc", "User:alice", "User:b/c", ("User:d", "User:*"), NOW_MS, NOW_MS + 2, NOW_MS + 1)
    return [b"\0" + encode_token(token), b"\1abc"]


SECURITY_TARGETS: Final = (
    Target("key-stores", _store, _store_seeds),
    Target("client-certificates", _client_certificate, _certificate_seeds),
    Target("principal-rules", _principal_rules, given(*_RULES)),
    Target("acl-requests", _acl_requests, _acl_request_seeds),
    Target("acl-znodes", _acl_znodes, _acl_znode_seeds),
    Target("token-znodes", _token_znodes, _token_znode_seeds),
)
