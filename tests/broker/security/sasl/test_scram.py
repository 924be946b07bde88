"""SCRAM beside scramp, another implementation, in both roles; the vectors of RFC 7677; exchanges that are tampered
with."""

import contextlib
import re
from base64 import b64decode, b64encode
from hashlib import new
from hmac import digest
from typing import Any

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client, Found, Scram
from barnabas.broker.security.sasl.scram_credentials import (
    ITERATIONS_MIN,
    MECHANISMS,
    Credential,
    client_key,
    salted_password,
    xor,
)
from tests.support.watched_calls import calls_of

MECHANISM = "SCRAM-SHA-256"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PASSWORD = "pencil"
CREDENTIAL = Credential.of_password(MECHANISM, PASSWORD, SALT)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
PASSWORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)

pytestmark = pytest.mark.parametrize("mechanism", sorted(MECHANISMS))


def counting(count: int) -> bytes:
    return bytes(range(count))


def server(mechanism: str, password: str = PASSWORD, **tokens: Found) -> Scram:
    """Knows the user "user", and delegation tokens."""
    credential = Credential.of_password(mechanism, password, SALT)

    def look_up(name: str, is_token: bool) -> Found | None:
        if is_token:
            return tokens.get(name)
        return Found(credential, Identity(name)) if name == "user" else None

    return Scram(mechanism, look_up, b"secret", counting)


def log_in(mechanism: Scram, client: Client) -> Identity | None:
    exchange, asker = mechanism.start(), client.start()
    final = asker.answer(exchange.take(asker.first()))
    assert final is not None
    assert asker.answer(exchange.take(final)) is None
    return exchange.identity


@settings(max_examples=10)
@given(name=NAMES, password=PASSWORDS)
def test_both_sides_of_ours(mechanism: str, name: str, password: str) -> None:
    """Any name and password."""
    credential = Credential.of_password(mechanism, password, SALT)
    found = Found(credential, Identity(name))
    ours = Scram(mechanism, lambda asked, is_token: found if asked == name else None, b"secret", counting)
    assert log_in(ours, Client(mechanism, Credentials(name, password), counting)) == Identity(name)


@settings(max_examples=5)
@given(name=PASSWORDS, password=PASSWORDS)
def test_our_server_and_scramp(mechanism: str, name: str, password: str) -> None:
    """scramp's client takes our signature."""
    found = Found(Credential.of_password(mechanism, password, SALT), Identity(name))
    exchange = Scram(mechanism, lambda asked, is_token: found if asked == name else None, b"", counting).start()
    client = scramp.ScramClient([mechanism], name, password)
    client.set_server_first(exchange.take(client.get_client_first().encode()).decode())
    client.set_server_final(exchange.take(client.get_client_final().encode()).decode())
    assert exchange.identity == Identity(name)


@settings(max_examples=5)
@given(name=PASSWORDS, password=PASSWORDS)
def test_our_client_and_scramp(mechanism: str, name: str, password: str) -> None:
    """scramp's server takes our proof, and keeps the same credential."""
    theirs = scramp.ScramMechanism(mechanism)
    info = theirs.make_auth_info(password, iteration_count=4096, salt=SALT)
    credential = Credential.of_password(mechanism, password, SALT)
    assert (credential.stored_key, credential.server_key) == (info[1], info[2])
    exchange = theirs.make_server(lambda asked: info)
    client = Client(mechanism, Credentials(name, password), counting).start()
    exchange.set_client_first(client.first().decode())
    final = client.answer(exchange.get_server_first().encode())
    assert final is not None
    exchange.set_client_final(final.decode())
    assert client.answer(exchange.get_server_final().encode()) is None


def test_text_form(mechanism: str) -> None:
    """The text of ScramCredentialUtils, and none of the secrets in any other text."""
    credential = Credential.of_password(mechanism, PASSWORD, SALT)
    text = credential.to_text()
    assert re.fullmatch(r"salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=[^,]+,server_key=[^,]+,iterations=4096", text)
    assert Credential.from_text(text) == credential
    assert b64encode(credential.server_key).decode() in text
    assert repr(credential) == "Credential(iterations=4096)"


@pytest.mark.parametrize("text", ["", "salt=,stored_key=,server_key=", "salt=a,stored_key=,server_key=,iterations=1"])
def test_broken_text_form(mechanism: str, text: str) -> None:
    """Damaged values are errors."""
    with pytest.raises(ValueError, match="SCRAM credential"):
        Credential.from_text(text)


def test_wrong_password(mechanism: str) -> None:
    """The login fails with the final message, without saying why."""
    with pytest.raises(AuthenticationFailed) as failed:
        log_in(server(mechanism), Client(mechanism, Credentials("user", "wrong"), counting))
    assert failed.value.message == ""


def test_unknown_user(mechanism: str) -> None:
    """An unknown user gets a challenge like that of a known one, the same each time, and fails at the end."""
    ours = server(mechanism)
    challenges = set()
    for _ in range(2):
        exchange, client = ours.start(), Client(mechanism, Credentials("stranger", PASSWORD), counting).start()
        challenge = exchange.take(client.first())
        challenges.add(challenge)
        final = client.answer(challenge)
        assert final is not None
        with pytest.raises(AuthenticationFailed) as failed:
            exchange.take(final)
        assert failed.value.message == ""
        assert exchange.identity is None
    assert len(challenges) == 1
    other = Client(mechanism, Credentials("somebody", PASSWORD), counting).start()
    assert ours.start().take(other.first()) not in challenges


def test_an_unknown_user_takes_as_long_as_a_wrong_password(mechanism: str) -> None:
    """The same calls for both messages."""
    users = {"user": Found(Credential.of_password(mechanism, PASSWORD, SALT), Identity("user"))}
    ours = Scram(mechanism, lambda name, _: users.get(name), b"secret", counting)

    def refuse(name: str) -> tuple[list[str], list[str]]:
        exchange, client = ours.start(), Client(mechanism, Credentials(name, "wrong"), counting).start()
        first = client.first()
        challenges: list[bytes] = []
        of_first = calls_of(lambda: challenges.append(exchange.take(first)))
        final = client.answer(challenges[0])

        def take() -> None:
            with pytest.raises(AuthenticationFailed):
                exchange.take(final)

        return of_first, calls_of(take)

    assert refuse("user") == refuse("stranger")


def test_delegation_token(mechanism: str) -> None:
    """With the extension the name is a token's id, and the identity that of the owner."""
    found = Found(Credential.of_password(mechanism, "hmac", SALT), Identity("owner", is_token=True, expires_ms=5))
    ours = server(mechanism, user=found)
    client = Client(mechanism, Credentials("user", "hmac"), counting, is_token=True)
    assert log_in(ours, client) == Identity("owner", is_token=True, expires_ms=5)
    with pytest.raises(AuthenticationFailed):  # the user's password is not the token's
        log_in(ours, Client(mechanism, Credentials("user", PASSWORD), counting, is_token=True))


def test_another_authorization_id(mechanism: str) -> None:
    """A user cannot act for another one (CVE-2017-12610)."""
    with pytest.raises(AuthenticationFailed, match="authorization id that is different from username"):
        server(mechanism).start().take(b"n,a=admin,n=user,r=abc")
    assert server(mechanism).start().take(b"n,a=user,n=user,r=abc").startswith(b"r=abc")


def tampered(mechanism: str, old: str, new: str) -> Any:
    """A login whose final message is changed on its way."""
    exchange, client = server(mechanism).start(), Client(mechanism, Credentials("user", PASSWORD), counting).start()
    final = client.answer(exchange.take(client.first()))
    assert final is not None
    changed = re.sub(old, new, final.decode())
    assert changed != final.decode()
    with pytest.raises(AuthenticationFailed):
        exchange.take(changed.encode())
    with pytest.raises(AuthenticationFailed):
        exchange.take(final)  # too late
    assert exchange.identity is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r=", "r=x"),  # CVE-2024-56128: a nonce that only ends with the server's
        ("r=[^,]*", "r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"),  # the server's part alone
        ("c=biws", "c=eSws"),
        ("c=biws", "c=biw"),
        ("p=.*", "p="),
        ("p=..", "p=AA"),
        (",p=.*", ""),
    ],
)
def test_tampered_final_message(mechanism: str, old: str, new: str) -> None:
    """Another nonce, channel binding or proof."""
    tampered(mechanism, old, new)


def test_nonce_of_old_librdkafka(mechanism: str) -> None:
    """Before 2.6.1 it repeats its own part before the whole nonce, and signs that."""
    exchange, client = server(mechanism).start(), Client(mechanism, Credentials("user", PASSWORD), counting).start()
    bare = client.first().decode().removeprefix("n,,")
    challenge = exchange.take(client.first()).decode()
    own, whole = bare.partition("r=")[2], challenge[2:].partition(",")[0]
    without_proof = f"c=biws,r={own}{whole}"
    hash_name = MECHANISMS[mechanism].name
    key = client_key(hash_name, salted_password(hash_name, PASSWORD, SALT, ITERATIONS_MIN))
    signature = digest(new(hash_name, key).digest(), f"{bare},{challenge},{without_proof}".encode(), hash_name)
    exchange.take(f"{without_proof},p={b64encode(xor(key, signature)).decode()}".encode())
    assert exchange.identity == Identity("user")


def test_replayed_exchange(mechanism: str) -> None:
    """The messages of a former login are worth nothing: the server's nonce is another one."""
    nonces = iter([b"first" * 5, b"other" * 5])
    found = Found(Credential.of_password(mechanism, PASSWORD, SALT), Identity("user"))
    ours = Scram(mechanism, lambda name, is_token: found, b"", lambda count: next(nonces)[:count])
    client = Client(mechanism, Credentials("user", PASSWORD), counting).start()
    first = client.first()
    exchange = ours.start()
    final = client.answer(exchange.take(first))
    assert final is not None
    exchange.take(final)
    replay = ours.start()
    replay.take(first)
    with pytest.raises(AuthenticationFailed):
        replay.take(final)


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"n,,n=user", b"y,,n=user,r=a", b"p=tls-unique,,n=user,r=a", b"n,,n=us=er,r=a", b"n,,n=user,r=\x7f"],
)
def test_invalid_first_message(mechanism: str, message: bytes) -> None:
    """Channel bindings, and what is no first message."""
    with pytest.raises(AuthenticationFailed):
        server(mechanism).start().take(message)


@settings(max_examples=50)
@given(first=st.binary(max_size=40), final=st.binary(max_size=40))
def test_no_bytes_break_the_server(mechanism: str, first: bytes, final: bytes) -> None:
    """Anything is a failure, none an exception of another kind."""
    exchange = server(mechanism).start()
    for message in (b"n,,n=user,r=" + first, final):
        with contextlib.suppress(AuthenticationFailed):
            exchange.take(message)
    assert exchange.identity is None


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        b"r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYX,s=AAAA,i=4096",
        b"r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYX1,s=AAAA,i=4095",
        b"r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYX1,s=AAAA,i=999999999",
        b"r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYX1,s=A,i=4096",
    ],
)
def test_wrong_server(mechanism: str, challenge: bytes) -> None:
    """A client does not go on with a foreign nonce, its own alone, a broken salt, or too few or too many iterations."""
    client = Client(mechanism, Credentials("user", PASSWORD), counting).start()
    client.first()
    with pytest.raises(AuthenticationFailed):
        client.answer(challenge)


def test_server_without_the_password(mechanism: str) -> None:
    """A client notices that the server cannot sign."""
    exchange, client = server(mechanism).start(), Client(mechanism, Credentials("user", PASSWORD), counting).start()
    client.answer(exchange.take(client.first()))
    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        client.answer(b"v=AAAA")


def test_vector_of_rfc_7677(mechanism: str) -> None:
    """The keys of the example of RFC 7677, section 3."""
    if mechanism != MECHANISM:
        return
    assert b64encode(CREDENTIAL.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert b64encode(CREDENTIAL.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
