"""The fuzzing targets of logins: messages of SASL, tokens, keys of their issuers, JAAS lines, names of Kerberos.

Parts of an input that are several texts are separated by zero bytes. Keys are made of fixed bytes, so that the same
input means the same each time.
"""

from __future__ import annotations

import json
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final

from barnabas.broker.api.authentication import AuthenticatedRequests
from barnabas.broker.api.context import RequestContext
from barnabas.broker.cluster.login_file import login_module
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.session import Session
from barnabas.broker.security.sasl import jaas, jwks, kerberos_names, plain, scram
from barnabas.broker.security.sasl.jwt import Claims, JwtValidator, check_claims
from barnabas.broker.security.sasl.kerberos_names import NoShortName, RuleError, ShortNamer
from barnabas.broker.security.sasl.listeners import Sasl, SaslListener
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.oauthbearer import InvalidToken, OAuthBearer
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram_credentials import Credential
from barnabas.broker.security.sasl.unsecured_jwt import UnsecuredJwtValidator
from barnabas.clock import ManualClock
from barnabas.controller.coordination.digest_md5 import (
    DigestMd5Client,
    DigestMd5Error,
    DigestMd5Login,
    DigestMd5Server,
)
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tools.fuzz.target import NOW_MS, Target, check_text, given, run_now

NOW_S: Final = NOW_MS // 1000
USER: Final = Credentials("user", "pencil")
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_CLOCK: Final = ManualClock(now_ms=NOW_MS)

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
                    run_now(answer)
            except AuthenticationFailed as failure:
                check_text(failure.message + str(failure))
                return
            if exchange.identity is not None:
                check_text(exchange.identity.name)
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
                outcome = run_now(outcome)
        except (ProtocolError, CloseConnection):
            return
        if isinstance(outcome, Message):
            codec.encode(outcome, min(1, type(outcome).VALID_VERSIONS[1]))
    check_text(connection.session.principal)


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
def signing_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@cache
def _jwk_set() -> bytes:
    key = {"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": _part(signing_key().public_key().public_bytes_raw())}
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
    return signing + b"." + _part(signing_key().sign(signing)).encode()


def _token(data: bytes) -> None:
    """A signed token, as text."""
    try:
        check_text(run_now(_validator().validate(data.decode(errors="replace"))).principal)
    except InvalidToken as error:
        check_text(str(error))


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
        check_text(run_now(unsecured.validate(f"{_part(header)}.{_part(claims)}.")).principal)
    except InvalidToken as error:
        check_text(str(error) + error.to_json())
    signing = f"{_part(header)}.{_part(claims)}".encode()
    _token(signing + b"." + _part(signing_key().sign(signing)).encode())
    try:
        found = json.loads(claims)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        try:
            check_claims(found, Claims(), NOW_MS)
        except InvalidToken as error:
            check_text(str(error))


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
        check_text(str(error))


def _key_set_seeds() -> list[bytes]:
    rsa = {"kty": "RSA", "kid": "2", "use": "sig", "alg": "RS256", "n": _part(b"\xc3" * 256), "e": "AQAB"}
    point = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"
    elliptic = {"kty": "EC", "crv": "P-256", "x": point[0], "y": point[1], "kid": "3", "key_ops": ["verify"]}
    secret = {"kty": "oct", "k": "AQAB"}
    return [_jwk_set(), json.dumps({"keys": [rsa, elliptic, secret, {}, None]}).encode()]


# --- JAAS lines -----------------------------------------------------------------------------------


def _jaas_line(data: bytes) -> None:
    text = data.decode(errors="replace")
    try:
        found = jaas.parse(text)
    except jaas.JaasError as error:
        check_text(str(error))
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


_CREDENTIAL: Final = Credential(b"salt", b"s" * 32, b"k" * 32, 4096)


def _scram_credential(data: bytes) -> None:
    """A user's credential in its znode."""
    try:
        found = Credential.from_text(data.decode(errors="replace"))
    except ValueError:
        return
    if Credential.from_text(found.to_text()) != found:
        raise AssertionError("a credential is read differently after it is written")


# --- logins to ZooKeeper, and Kerberos ------------------------------------------------------------


def _digest_md5_server(data: bytes) -> None:
    """The client's messages of a login to ZooKeeper, in turn."""
    server = DigestMd5Server({USER.username: USER.password}.get, bytes)
    for message in (b"", *data.split(b"\0")):
        try:
            server.respond(message)
        except DigestMd5Error:
            return
        if server.username is not None:
            check_text(server.username)
            if server.username != USER.username:
                raise AssertionError(f"a login as {server.username}")


def _digest_md5_client(data: bytes) -> None:
    """What ZooKeeper sends in a login, in turn."""
    client = DigestMd5Client(DigestMd5Login(*USER, bytes))
    for message in data.split(b"\0"):
        try:
            client.respond(message)
        except DigestMd5Error:
            return


def _digest_md5_messages() -> tuple[bytes, bytes, bytes]:
    """The challenge, the response and the last message of a login."""
    server, client = (
        DigestMd5Server({USER.username: USER.password}.get, bytes),
        DigestMd5Client(DigestMd5Login(*USER, bytes)),
    )
    challenge = server.respond(b"")
    response = client.respond(challenge)
    return challenge, response, server.respond(response)


def _digest_md5_responses() -> list[bytes]:
    _, response, _ = _digest_md5_messages()
    return [response, response + b",authzid=user", response.replace(b"charset=utf-8,", b"") + b"\0x"]


def _digest_md5_challenges() -> list[bytes]:
    challenge, _, last = _digest_md5_messages()
    return [challenge + b"\0" + last, challenge + b',realm="another\\"",qop="auth,auth-int"\0' + last]


def _login_file(data: bytes) -> None:
    """A JAAS file of sections."""
    text = data.decode(errors="replace")
    for section in ("Client", "Server"):
        try:
            found = login_module(text, section)
        except ValueError as error:
            check_text(str(error))
            continue
        if found is not None and jaas.parse(found.line()) != found:
            raise AssertionError("a login module is read differently after it is written")


_RULES: Final = (
    r"RULE:[1:$1@$0](.*@EXAMPLE\.COM)s/@.*//",
    "RULE:[2:$1;$2](^.*;admin$)s/;admin$//L",
    "RULE:[2:$1]s/-/_/g/U",
    "DEFAULT",
)


def _kerberos_names(data: bytes) -> None:
    """Principals of clients, one after the other, by fixed rules; and rules, which are compiled and not applied: an
    administrator's regular expression may take as long as it likes."""
    *principals, rules = data.decode(errors="replace").split("\0")
    try:
        ShortNamer("EXAMPLE.COM", rules.split("\n"))
    except RuleError as error:
        str(error)
    namer = ShortNamer("EXAMPLE.COM", _RULES)
    for principal in principals:
        try:
            name = kerberos_names.parse(principal)
            short_name = namer.short_name(name)
        except NoShortName as error:
            str(error)
            continue
        if name.realm is not None and ("/" in short_name or "@" in short_name):
            raise AssertionError(f"{short_name!r} of {principal!r} is no short name")


_NAMES: Final = ("alice@EXAMPLE.COM", "bob-x/admin@EXAMPLE.COM", "kafka/broker.example@OTHER", "carol", "a/b/c@R@S")

LOGIN_TARGETS: Final = (
    Target("sasl-plain", _log_in("PLAIN"), given(b"\0user\0pencil", b"user\0user\0pencil", b"\0\xff\0\xfe")),
    *(Target(f"sasl-{name.lower()}", _log_in(name), partial(_scram_seeds, name)) for name in MECHANISMS),
    Target("sasl-scram-client", _scram_client, _challenge_seeds),
    Target("sasl-oauthbearer", _log_in("OAUTHBEARER"), _oauthbearer_seeds),
    Target("sasl-requests", _sasl_requests, _sasl_request_seeds),
    Target("scram-credentials", _scram_credential, given(_CREDENTIAL.to_text().encode())),
    Target("tokens", _token, _token_seeds),
    Target("token-claims", _claims, _claims_seeds),
    Target("jwk-sets", _key_set, _key_set_seeds),
    Target("jaas-lines", _jaas_line, given(*_JAAS_LINES)),
    Target("digest-md5-server", _digest_md5_server, _digest_md5_responses),
    Target("digest-md5-client", _digest_md5_client, _digest_md5_challenges),
    Target(
        "login-files",
        _login_file,
        given(*(b"// x\n" + name + b" {\n  " + _JAAS_LINES[0] + b"\n};\n" for name in (b"Client", b'"Server"'))),
    ),
    Target("kerberos-names", _kerberos_names, given("\0".join((*_NAMES, "\n".join(_RULES))).encode())),
)
