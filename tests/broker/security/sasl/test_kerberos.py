"""GSSAPI on both sides, with a library that a test plays. compat_tests/sasl/test_kerberos.py has the other."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.sasl import jaas, making
from barnabas.broker.security.sasl.kerberos import Context, Kerberos, KerberosError
from barnabas.broker.security.sasl.kerberos_client import Client, InitiatedContext
from barnabas.broker.security.sasl.kerberos_names import ShortNamer
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity, PreparationFailed
from barnabas.threads import OneThread

pytestmark = pytest.mark.anyio

OFFER: Final = b"signed \1\0\0\0"


class FakeContext:
    """Established by the token b"last". Its answers are those of `answers`; messages are signed by a prefix."""

    def __init__(self, principal: str, answers: list[bytes]) -> None:
        self._principal = principal
        self._answers = answers
        self._last = b""

    def step(self, token: bytes) -> bytes:
        if token not in (b"first", b"last"):
            raise KerberosError("Invalid token was supplied")
        self._last = token
        return self._answers.pop(0)

    def is_established(self) -> bool:
        return self._last == b"last"

    def initiator(self) -> str:
        return self._principal

    def wrap(self, message: bytes) -> bytes:
        return b"signed " + message

    def unwrap(self, message: bytes) -> bytes:
        if not message.startswith(b"signed "):
            raise KerberosError("A token had an invalid MIC")
        return message.removeprefix(b"signed ")


class FakeLibrary:
    def __init__(self, principal: str = "alice@HERE", answers: tuple[bytes, ...] = (b"answer",)) -> None:
        self._principal = principal
        self._answers = answers
        self.problem = ""

    def accept(self) -> Context:
        if self.problem:
            raise KerberosError(self.problem)
        return FakeContext(self._principal, list(self._answers))

    def default_realm(self) -> str:
        return "HERE"


def mechanism(library: FakeLibrary, *rules: str) -> Kerberos:
    return Kerberos(library, lambda realm: ShortNamer(realm, rules or ["DEFAULT"]), OneThread())


async def test_a_login() -> None:
    """The context's answer, the offer of no layer, the client's short name; the authorization id is ignored."""
    exchange = mechanism(FakeLibrary()).start()
    assert await exchange.take(b"last") == b"answer"
    assert await exchange.take(b"") == OFFER
    assert exchange.identity is None
    assert await exchange.take(b"signed \1\0\0\0root@HERE") == b""
    assert exchange.identity == Identity("alice")


async def test_a_login_without_mutual_authentication() -> None:
    """The offer follows at once, if the context has nothing more to say; tokens may be several."""
    exchange = mechanism(FakeLibrary(answers=(b"more", b""))).start()
    assert await exchange.take(b"first") == b"more"
    assert await exchange.take(b"last") == OFFER
    assert await exchange.take(b"signed \1\0\0\0") == b""


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"garbage"], "Invalid token"),
        ([b"last", b"something"], "nothing to say"),
        ([b"last", b"", b"unsigned \1\0\0\0"], "invalid MIC"),
        ([b"last", b"", b"signed \2\0\0\0"], "asks for a security layer"),
        ([b"last", b"", b"signed \4\0\xff\xff"], "asks for a security layer"),
        ([b"last", b"", b"signed \1"], "asks for a security layer"),
        ([b"last", b"", b"signed "], "asks for a security layer"),
        ([b"last", b"", b"signed \1\0\0\0", b""], "after the end"),
    ],
)
async def test_refused_messages(messages: list[bytes], reason: str) -> None:
    """The client is told Kafka's general message, the log the reason; nothing is taken afterwards."""
    exchange = mechanism(FakeLibrary()).start()
    for message in messages[:-1]:
        await exchange.take(message)
    identity = exchange.identity
    for message, told in ((messages[-1], reason), (b"last", "after the end")):
        with pytest.raises(AuthenticationFailed, match=told) as failure:
            await exchange.take(message)
        assert failure.value.message == ""
    assert exchange.identity is identity


@pytest.mark.parametrize(
    ("principal", "reason"),
    [
        ("alice@ELSEWHERE", "no rule of sasl.kerberos.principal.to.local.rules applies to alice@ELSEWHERE"),
        ("a/b/c@HERE", "malformed"),
        ("alice\\/x@HERE", "escaped characters"),
        ("alice\\@HERE@ELSEWHERE", "escaped characters"),
    ],
)
async def test_clients_without_a_short_name(principal: str, reason: str) -> None:
    """An escaped / or @ is part of a component, and must not be cut there."""
    exchange = mechanism(FakeLibrary(principal)).start()
    await exchange.take(b"last")
    await exchange.take(b"")
    with pytest.raises(AuthenticationFailed, match=reason):
        await exchange.take(b"signed \1\0\0\0")
    assert exchange.identity is None


@given(st.lists(st.sampled_from([b"first", b"last", b"", b"signed \1\0\0\0", b"signed x"]) | st.binary(max_size=9)))
async def test_any_messages(messages: list[bytes]) -> None:
    """An answer or AuthenticationFailed; an identity only after an established context and the client's choice."""
    exchange = mechanism(FakeLibrary(answers=(b"answer",) * 10)).start()
    taken = []
    for message in messages:
        try:
            await exchange.take(message)
        except AuthenticationFailed:
            break
        taken.append(message)
    if exchange.identity is not None:
        assert b"last" in taken
        assert taken[-1][:8] == b"signed \1"


async def test_preparation() -> None:
    """A key table that cannot be read is told at the start, and is looked at again at each login."""
    library = FakeLibrary()
    found = mechanism(library)
    found.prepare()
    library.problem = "kafka/localhost@HERE in /x: Key table file '/x' not found"
    with pytest.raises(PreparationFailed, match=r"sasl\.jaas\.config for GSSAPI: kafka/localhost@HERE in /x"):
        found.prepare()
    with pytest.raises(AuthenticationFailed, match="not found"):
        await found.start().take(b"last")
    library.problem = ""
    assert await found.start().take(b"last") == b"answer"


# --- a broker that logs in ------------------------------------------------------------------------


class FakeInitiatedContext(FakeContext):
    """The other side of a FakeContext: its tokens are those that are taken there."""

    def __init__(self, tokens: list[bytes]) -> None:
        super().__init__("", tokens)
        self._is_established = False

    def step(self, token: bytes | None) -> bytes:
        if token not in (None, b"answer", b"more"):
            raise KerberosError("Invalid token was supplied")
        self._is_established = token == b"answer"
        return self._answers.pop(0) if self._answers else b""

    def is_established(self) -> bool:
        return self._is_established


class FakeClientLibrary:
    def __init__(self, *tokens: bytes) -> None:
        self._tokens = tokens
        self.asked: list[tuple[str, str]] = []

    def initiate(self, service: str, host: str) -> InitiatedContext:
        self.asked.append((service, host))
        if not self._tokens:
            raise KerberosError("kafka/a@HERE in /x: Cannot find KDC for realm")
        return FakeInitiatedContext(list(self._tokens))


@pytest.mark.parametrize(
    ("tokens", "answers"), [((b"last",), (b"answer",)), ((b"first", b"last"), (b"more", b"answer"))]
)
async def test_a_login_of_a_broker(tokens: tuple[bytes, ...], answers: tuple[bytes, ...]) -> None:
    """Message after message with the other side; the service is that of the host of the connection."""
    library = FakeClientLibrary(*tokens)
    client = Client(library, "kafka").start("b.example")
    server = mechanism(FakeLibrary("kafka/a@HERE", answers)).start()
    message: bytes | None = client.first()
    while message is not None:
        message = client.answer(await server.take(message))
    assert server.identity == Identity("kafka")
    assert library.asked == [("kafka", "b.example")]


def test_a_login_that_cannot_begin() -> None:
    with pytest.raises(AuthenticationFailed, match=r"Kerberos, kafka@b\.example: kafka/a@HERE in /x: Cannot"):
        Client(FakeClientLibrary(), "kafka").start("b.example").first()


@pytest.mark.parametrize(
    ("challenges", "reason"),
    [
        ([b"garbage"], "Invalid token"),
        ([b"answer", b"unsigned \1\0\0\0"], "invalid MIC"),
        ([b"answer", b"signed \2\0\0\0"], "wants a security layer"),
        ([b"answer", b"signed \1"], "wants a security layer"),
    ],
)
def test_challenges_that_are_refused(challenges: list[bytes], reason: str) -> None:
    client = Client(FakeClientLibrary(b"last"), "kafka").start("b.example")
    client.first()
    for challenge in challenges[:-1]:
        client.answer(challenge)
    with pytest.raises(AuthenticationFailed, match=reason):
        client.answer(challenges[-1])


# --- the configuration ----------------------------------------------------------------------------

OPTIONS: Final = {
    "useKeyTab": "true",
    "storeKey": "true",
    "keyTab": "/etc/kafka.keytab",
    "principal": "kafka/host@HERE",
}


def made(keys: Mapping[str, Any], find_package: Callable[[], Any] = lambda: None, **options: str | None) -> Any:
    given = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
    values: dict[str, Any] = {
        "sasl.jaas.config": jaas.LoginModule(jaas.KERBEROS_LOGIN_MODULE, options=given).line(),
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": ("DEFAULT",),
        **keys,
    }
    sources = making.Sources(None, OneThread(), bytes, None, find_gssapi=find_package)  # type: ignore[arg-type]
    return making.make_mechanism("GSSAPI", values.get, sources)


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, {}),
        ({}, {"keyTab": None}),
        ({}, {"serviceName": "kafka"}),
        ({"sasl.kerberos.service.name": None}, {"serviceName": "kafka"}),
        ({}, {"useKeyTab": "TRUE", "doNotPrompt": "true", "isInitiator": "false", "debug": "true"}),
    ],
)
def test_configurations(keys: dict[str, Any], options: dict[str, str | None]) -> None:
    """Options of Java's Krb5LoginModule; without a key table, krb5.conf names one."""
    assert isinstance(made(keys, **options), Kerberos)


@pytest.mark.parametrize(
    ("keys", "options", "told"),
    [
        ({}, {"useKeyTab": None}, "needs useKeyTab=true"),
        ({}, {"storeKey": "false"}, "needs storeKey=true"),
        ({}, {"principal": None}, "has no principal="),
        ({}, {"principal": "*"}, "has no principal="),
        ({"sasl.jaas.config": None}, {}, "GSSAPI needs a line of its login module"),
        ({"sasl.kerberos.service.name": None}, {}, "sasl.kerberos.service.name is not set"),
        ({}, {"serviceName": "other"}, "sasl.kerberos.service.name is kafka, and serviceName in"),
        ({"sasl.kerberos.principal.to.local.rules": ("RULE:x",)}, {}, "local.rules: RULE:x is neither DEFAULT nor"),
        ({"sasl.server.callback.handler.class": "a.B"}, {}, "names a Java class"),
    ],
)
def test_refused_configurations(keys: dict[str, Any], options: dict[str, str | None], told: str) -> None:
    with pytest.raises(making.MechanismError, match=told) as refused:
        made(keys, **options)
    assert "\n" not in str(refused.value)


def test_a_missing_package() -> None:
    """One line that says what to install."""

    def find() -> Any:
        raise ImportError("No module named 'gssapi'")

    with pytest.raises(making.MechanismError, match=r"pip install 'barnabas\[kerberos\]'") as refused:
        made({}, find)
    assert "\n" not in str(refused.value)
