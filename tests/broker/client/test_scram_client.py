"""The client's side of SCRAM, by the example of RFC 7677 and against scramp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramMechanism

from barnabas.broker.client.scram import ScramClient, ScramError

SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def rfc_client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")


def test_the_example_of_the_rfc() -> None:
    client = rfc_client()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        SERVER_FIRST.replace(b"rOpr", b"xOpr"),  # not the client's nonce
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # nothing of the server's own
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", b"999999999"),
        SERVER_FIRST.replace(b"W22Z", b"="),
    ],
)
def test_an_invalid_first_message(message: bytes) -> None:
    with pytest.raises(ScramError):
        rfc_client().final(message)


@pytest.mark.parametrize("message", [b"", b"e=other-error", b"v=", b"v=AAAA", b"v==", b"\xff"])
def test_an_invalid_final_message(message: bytes) -> None:
    client = rfc_client()
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        client.verify(message)


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1)


@given(NAMES, NAMES, st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]))
def test_another_implementation_agrees(username: str, password: str, mechanism: str) -> None:
    known = ScramMechanism(mechanism)
    asked: list[str] = []

    def credentials(name: str) -> object:
        asked.append(name)
        return known.make_auth_info(password, iteration_count=4096)

    server, client = known.make_server(credentials), ScramClient(mechanism, username, password)
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.verify(server.get_server_final().encode())
    assert asked == [username]
