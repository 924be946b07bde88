"""The fuzzing targets of security: messages of SASL, tokens, keys, certificates, JAAS lines and ACLs.

Parts of an input that are several texts are separated by zero bytes. Nothing here waits for anything: coroutines are
run by hand (`_run`). Keys are made of fixed bytes, so that the same input means the same each time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from barnabas.broker.api.authentication import AuthenticatedRequests
from barnabas.broker.api.context import RequestContext
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session
from barnabas.broker.security.acls.administration import AclAdministration
from barnabas.broker.security.acls.authorizer import AclAuthorizer
from barnabas.broker.security.acls.bindings import entry_of, pattern_of, resource_of, stored
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.security.sasl import jaas, jwks, plain, scram
from barnabas.broker.security.sasl.jwt import Claims, JwtValidator, check_claims
from barnabas.broker.security.sasl.listeners import Sasl, SaslListener
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.oauthbearer import InvalidToken, OAuthBearer
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram_credentials import Credential
from barnabas.broker.security.sasl.unsecured_jwt import UnsecuredJwtValidator
from barnabas.broker.security.tls import stores
from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.key_stores import StoreSettings, load_key_store, load_trust_store
from barnabas.broker.security.tls.principal_mapping import NoMatchingRule, PrincipalMapping, subject_name
from barnabas.clock import ManualClock
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
from barnabas.controller.znodes import DamagedZnode
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ApiError, ProtocolError
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tools.fuzz.target import NOW_MS, Target

T = TypeVar("T")

NOW_S: Final = NOW_MS // 1000
USER: Final = Credentials("user", "pencil")
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_CLOCK: Final = ManualClock(now_ms=NOW_MS)
_STEPS_MAX: Final = 10_000


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that at most lets others have their turn."""
    for _ in range(_STEPS_MAX):
        try:
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if waits_for is not None:
            break
    coroutine.close()
    raise AssertionError(f"it waits for {waits_for!r}")


def _is_text(name: str) -> None:
    """A name of a user stands in logs, metrics and znodes. Raises UnicodeEncodeError."""
    name.encode()


# --- messages of SASL -----------------------------------------------------------------------------


@cache
def _mechanisms() -> Mapping[str, Any]:
    credentials = {name: Credential.of_password(name, USER.password, b"salt") for name in MECHANISMS}

    def found(mechanism: str) -> Callable[[str, bool], scram.Found | None]:
        return lambda name, is_token: (
            scram.Found(credentials[mechanism], Identity(name)) if name == USER.username and not is_token else None
        )

    return {
        "PLAIN": plain.Plain({USER.username: USER.password}),
        **{name: scram.Scram(name, found(name), b"secret", bytes) for name in MECHANISMS},
        "OAUTHBEARER": OAuthBearer(UnsecuredJwtValidator({}, _CLOCK).validate),
    }


def _log_in(mechanism: str) -> Callable[[bytes], None]:
    """A whole login on the server's side: message after message."""

    def run(data: bytes) -> None:
        exchange = _mechanisms()[mechanism].start()
        for message in data.split(b"\0") if mechanism != "PLAIN" else [data]:
            try:
                answer = exchange.take(message)
                if not isinstance(answer, bytes):
                    _run(answer)
            except AuthenticationFailed as failure:
                _is_text(failure.message + str(failure))
                return
            if exchange.identity is not None:
                _is_text(exchange.identity.name)
                if mechanism != "OAUTHBEARER" and exchange.identity.name != USER.username:
                    raise AssertionError(f"a login as {exchange.identity.name}")

    return run


class _QuickClient(scram.Client):
    """Derives no key: a server may ask for a million iterations, which takes a thread half a second."""

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        return super().salted_password(salt, 4096) if salt == b"salt" else bytes(32)


def _scram_client(data: bytes) -> None:
    """What a server sends to a client."""
    exchange = _quick_client().start()
    exchange.first()
    for message in data.split(b"\0"):
        try:
            if exchange.answer(message) is None:
                return
        except AuthenticationFailed:
            return


@cache
def _quick_client() -> _QuickClient:
    return _QuickClient(MECHANISMS[0], USER, bytes)


def _scram_messages(mechanism: str) -> tuple[bytes, bytes, bytes, bytes]:
    """The messages of a login, in turn."""
    exchange, client = _mechanisms()[mechanism].start(), scram.Client(mechanism, USER, bytes).start()
    first = client.first()
    challenge = exchange.take(first)
    final = client.answer(challenge) or b""
    return first, challenge, final, exchange.take(final)


def _scram_seeds(mechanism: str) -> list[bytes]:
    first, _, final, _ = _scram_messages(mechanism)
    others = [b"n,a=user,n=us=2Cer,r=abc", b"n,,m=x,n=user,r=abc,tokenauth=true", b"p=tls-unique,,n=user,r=abc"]
    return [first + b"\0" + final, *others]


def _challenge_seeds() -> list[bytes]:
    _, challenge, _, last = _scram_messages(MECHANISMS[0])
    return [challenge + b"\0" + last, challenge + b",x=y\0e=other-error"]


def _oauthbearer_seeds() -> list[bytes]:
    token = _unsecured({"alg": "none"}, {"sub": "user", "exp": NOW_S + 60}).encode()
    return [
        b"n,,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,a=user,\x01auth=bearer  " + token + b"\x01traceId=1\x01\x01",
        b"n,,\x01auth=Bearer abc\x01\x01\0\x01",
    ]


class _Requests:
    """Serves the requests that come before a login, as the dispatcher does."""

    clock = _CLOCK

    def __init__(self, sasl: Sasl) -> None:
        self._services: Any = SimpleNamespace(sasl=sasl, authorizer=None)

    def dispatch(self, frame: memoryview, connection: Any) -> Any:
        header = headers.parse_request_header(frame)
        if header.api_key not in (SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY):
            return None
        handler, cls = load_handler(header.api_key), messages.api(header.api_key).request_class
        if not handler.min_version <= header.api_version <= handler.max_version:
            raise ProtocolError("an unknown version")
        request, _ = codec.decoder(cls, header.api_version)(frame, header.body_position)
        context = RequestContext(
            self._services, connection.session, header.api_key, header.api_version, header.correlation_id, None
        )
        return handler.handle(request, context)


def _sasl_requests(data: bytes) -> None:
    """The frames of one connection, with headers or without."""
    sasl = Sasl({"CLIENTS": SaslListener(_mechanisms(), {"PLAIN": 60_000})}, _CLOCK, _nothing())
    connection: Any = SimpleNamespace(session=Session(None, ListenerContext("CLIENTS"), 1), serve_by=lambda _: None)
    requests = AuthenticatedRequests(_Requests(sasl), sasl)  # type: ignore[arg-type]
    position = 0
    while len(data) - position >= 4:
        (size,) = struct.unpack_from(">i", data, position)
        frame = memoryview(data)[position + 4 : position + 4 + max(size, 0)]
        position += 4 + max(size, 0)
        try:
            outcome = requests.dispatch(frame, connection)
            if isinstance(outcome, Coroutine):
                outcome = _run(outcome)
        except (ProtocolError, CloseConnection):
            return
        if isinstance(outcome, Message):
            codec.encode(outcome, min(1, type(outcome).VALID_VERSIONS[1]))
    _is_text(connection.session.principal)


def _nothing() -> Any:
    """In place of what is not needed."""
    return None


def _sasl_request_seeds() -> list[bytes]:
    def framed(content: bytes) -> bytes:
        return struct.pack(">i", len(content)) + content

    def request(message: Any, version: int) -> bytes:
        return framed(headers.request_header(message.API_KEY, version, 1, "c") + codec.encode(message, version))

    first, _, final, _ = _scram_messages(MECHANISMS[0])
    sent = {"PLAIN": (b"\0user\0pencil",), MECHANISMS[0]: (first, final), "OAUTHBEARER": (_oauthbearer_seeds()[0],)}
    seeds = []
    for mechanism, tokens in sent.items():
        for version in (0, 1):
            with_headers = [request(SaslAuthenticateRequest(auth_bytes=each), 2 * version) for each in tokens]
            rest = with_headers if version else [framed(each) for each in tokens]
            seeds.append(b"".join([request(SaslHandshakeRequest(mechanism=mechanism), version), *rest]))
    again = [request(SaslHandshakeRequest(mechanism="PLAIN"), 1), request(SaslAuthenticateRequest(auth_bytes=b"x"), 0)]
    return [*seeds, seeds[1] + b"".join(again)]


# --- tokens ---------------------------------------------------------------------------------------


def _part(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _unsecured(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    return f"{_part(json.dumps(header).encode())}.{_part(json.dumps(claims).encode())}."


class _Keys:
    """The issuer's keys."""

    def __init__(self, content: bytes) -> None:
        self._keys = jwks.parse(content)

    async def keys(self) -> Mapping[str, Any]:
        return self._keys

    async def newer_keys(self) -> Mapping[str, Any]:
        return self._keys


@cache
def _signing_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@cache
def _jwk_set() -> bytes:
    key = {"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": _part(_signing_key().public_key().public_bytes_raw())}
    return json.dumps({"keys": [key]}).encode()


@cache
def _validator() -> JwtValidator:
    claims = Claims(frozenset({"kafka"}), "https://issuer.example")
    return JwtValidator(_Keys(_jwk_set()), claims, _CLOCK)


_CLAIMS: Final = {
    "sub": "user",
    "iat": NOW_S - 10,
    "nbf": NOW_S - 10,
    "exp": NOW_S + 60.5,
    "aud": ["kafka", "other"],
    "iss": "https://issuer.example",
    "scope": ["read", "write"],
}


def _signed(header: Mapping[str, Any], claims: Mapping[str, Any]) -> bytes:
    signing = f"{_part(json.dumps(header).encode())}.{_part(json.dumps(claims).encode())}".encode()
    return signing + b"." + _part(_signing_key().sign(signing)).encode()


def _token(data: bytes) -> None:
    """A signed token, as text."""
    try:
        _is_text(_run(_validator().validate(data.decode(errors="replace"))).principal)  # type: ignore[arg-type]
    except InvalidToken as error:
        _is_text(str(error))


def _token_seeds() -> list[bytes]:
    header = {"alg": "EdDSA", "kid": "1"}
    return [
        _signed(header, _CLAIMS),
        _signed({"alg": "EdDSA"}, {**_CLAIMS, "aud": "kafka"}),
        _signed({**header, "crit": ["b64"], "b64": False}, _CLAIMS),
        _signed({**header, "kid": "other"}, _CLAIMS),
        _unsecured({"alg": "none"}, _CLAIMS).encode(),
    ]


def _claims(data: bytes) -> None:
    """The header and the claims of a token whose signature is right, or that has none."""
    header, _, claims = data.partition(b"\0")
    unsecured = UnsecuredJwtValidator({"unsecuredValidatorRequiredScope": "read"}, _CLOCK)
    try:
        _is_text(_run(unsecured.validate(f"{_part(header)}.{_part(claims)}.")).principal)  # type: ignore[arg-type]
    except InvalidToken as error:
        _is_text(str(error) + error.to_json())
    signing = f"{_part(header)}.{_part(claims)}".encode()
    _token(signing + b"." + _part(_signing_key().sign(signing)).encode())
    try:
        found = json.loads(claims)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        try:
            check_claims(found, Claims(), NOW_MS)
        except InvalidToken as error:
            _is_text(str(error))


def _claims_seeds() -> list[bytes]:
    return [
        json.dumps(header).encode() + b"\0" + json.dumps(claims).encode()
        for header in ({"alg": "none"}, {"alg": "EdDSA", "kid": "1", "typ": "JWT"})
        for claims in (_CLAIMS, {**_CLAIMS, "sub": "\ud800", "scope": "read"}, {**_CLAIMS, "exp": 1e308, "aud": None})
    ]


def _key_set(data: bytes) -> None:
    try:
        jwks.parse(data)
    except ValueError as error:
        _is_text(str(error))


def _key_set_seeds() -> list[bytes]:
    rsa = {"kty": "RSA", "kid": "2", "use": "sig", "alg": "RS256", "n": _part(b"\xc3" * 256), "e": "AQAB"}
    point = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"
    elliptic = {"kty": "EC", "crv": "P-256", "x": point[0], "y": point[1], "kid": "3", "key_ops": ["verify"]}
    secret = {"kty": "oct", "k": "AQAB"}
    return [_jwk_set(), json.dumps({"keys": [rsa, elliptic, secret, {}, None]}).encode()]


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
    return builder.public_key(_signing_key().public_key()).sign(_signing_key(), None)


@cache
def _pem() -> tuple[bytes, bytes]:
    """A private key, and its certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = _signing_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
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
        _is_text(str(error))


def _store_seeds() -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    key, certificate = _pem()
    other = pkcs12.serialize_key_and_certificates(None, None, None, [_certificate()], NoEncryption())
    whole = pkcs12.serialize_key_and_certificates(b"a", _signing_key(), _certificate(), None, NoEncryption())
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
        _is_text(_mapping().principal_of(data))
    try:
        _is_text(subject_name(data))
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
        _is_text(str(error))


_RULES: Final = (
    b"RULE:^CN=(.*?),OU=(?<unit>[^,]*)$/$1@${unit}/L, RULE:^CN=(\\w+).*$/$1/U, DEFAULT\0CN=a,OU=b",
    b"RULE:.*/\\$0$0/\0CN=a",
    b"DEFAULT\0CN=a",
    b"RULE:(a{1,3}){2}/$11/\0aaaa",
)


# --- JAAS lines -----------------------------------------------------------------------------------


def _jaas_line(data: bytes) -> None:
    text = data.decode(errors="replace")
    try:
        found = jaas.parse(text)
    except jaas.JaasError as error:
        _is_text(str(error))
        return
    values = {f"option{number}": value for number, value in enumerate(found.options.values())}
    module = jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, found.control_flag, values)
    if jaas.parse(module.line()) != module:
        raise AssertionError("a line is read differently after it is written")


_JAAS_LINES: Final = (
    jaas.PLAIN_LOGIN_MODULE.encode() + b' required username="a" password="p\\"\\101;\\n" user_a="b";',
    b"a.B OPTIONAL /* x */ a=b c='d' // e\n;",
    b'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true principal="kafka/h@R";',
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
            codec.encode(_run(answer), version)
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


_CREDENTIAL: Final = Credential(b"salt", b"s" * 32, b"k" * 32, 4096)


def _scram_credential(data: bytes) -> None:
    """A user's credential in its znode."""
    try:
        found = Credential.from_text(data.decode(errors="replace"))
    except ValueError:
        return
    if Credential.from_text(found.to_text()) != found:
        raise AssertionError("a credential is read differently after it is written")


def _given(*seeds: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: seeds


SECURITY_TARGETS: Final = (
    Target("sasl-plain", _log_in("PLAIN"), _given(b"\0user\0pencil", b"user\0user\0pencil", b"\0\xff\0\xfe")),
    *(
        Target(f"sasl-{name.lower()}", _log_in(name), lambda name=name: _scram_seeds(name))  # type: ignore[misc]
        for name in MECHANISMS
    ),
    Target("sasl-scram-client", _scram_client, _challenge_seeds),
    Target("sasl-oauthbearer", _log_in("OAUTHBEARER"), _oauthbearer_seeds),
    Target("sasl-requests", _sasl_requests, _sasl_request_seeds),
    Target("tokens", _token, _token_seeds),
    Target("token-claims", _claims, _claims_seeds),
    Target("jwk-sets", _key_set, _key_set_seeds),
    Target("key-stores", _store, _store_seeds),
    Target("client-certificates", _client_certificate, _certificate_seeds),
    Target("principal-rules", _principal_rules, _given(*_RULES)),
    Target("jaas-lines", _jaas_line, _given(*_JAAS_LINES)),
    Target("acl-requests", _acl_requests, _acl_request_seeds),
    Target("acl-znodes", _acl_znodes, _acl_znode_seeds),
    Target(
        "scram-credentials",
        _scram_credential,
        _given(_CREDENTIAL.to_text().encode()),
    ),
)

logging.getLogger("barnabas.broker.security.sasl").setLevel(logging.CRITICAL)
