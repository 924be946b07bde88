"""PLAIN: the right password, and everything else."""

import pytest

from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.plain import Credentials, Plain
from tests.support.watched_calls import calls_of

USERS = plain.users_of({"username": "admin", "user_alice": "päss", "user_": "nobody", "user_bob": "b"})


def test_the_right_password() -> None:
    """The client's first message is the last one of the login."""
    exchange = Plain(USERS).start()
    client = plain.Client(Credentials("alice", "päss")).start()
    assert exchange.take(client.first()) == b""
    assert client.answer(b"") is None
    assert exchange.identity == Identity("alice")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0carol\0b", "Authentication failed: Invalid username or password"),
        (b"\0carol\0\xff", "Authentication failed: Invalid username or password"),
        (b"\0admin\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0\0b", "Authentication failed: username not specified"),
        (b"\0bob\0", "Authentication failed: password not specified"),
        (
            b"alice\0bob\0b",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"alice\0bob\0wrong", "Authentication failed: Invalid username or password"),
    ],
)
def test_failures(message: bytes, told: str) -> None:
    """Kafka's messages; an unknown user is no other failure than a wrong password. bob is not alice:
    CVE-2017-12610."""
    exchange = Plain(USERS).start()
    with pytest.raises(AuthenticationFailed) as failed:
        exchange.take(message)
    assert failed.value.message == told
    assert exchange.identity is None


def test_an_unknown_user_takes_as_long_as_a_wrong_password() -> None:
    """The same calls, whatever the lengths of the name and the password are."""

    def refuse(message: bytes) -> list[str]:
        exchange = Plain(USERS).start()

        def take() -> None:
            with pytest.raises(AuthenticationFailed):
                exchange.take(message)

        return calls_of(take)

    assert refuse(b"\0alice\0wrong") == refuse(b"\0carol-who-is-unknown\0b") == refuse(b"\0bob\0" + b"x" * 1_000)


def test_the_authorization_id_of_the_user() -> None:
    """A client may name itself."""
    exchange = Plain(USERS).start()
    exchange.take(b"bob\0bob\0b")
    assert exchange.identity == Identity("bob")


def test_passwords_are_hidden() -> None:
    """The text form of credentials has no password."""
    assert "secret" not in f"{Credentials('alice', 'secret')!r}"
