"""`barnabas certificates`: files, who may read them, and that clients and servers accept each other by them."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from barnabas.broker.cli.app import main
from barnabas.broker.cli.authority import Authority, pkcs12_store, pkcs12_trust, write_private
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.security import Security, Tls
from barnabas.broker.security.tls import stores
from tests.broker.client.secured_broker import SecuredBroker

DAY_MS = 86_400_000
NOW_MS = 1_900_000_000_000


def make(directory: Path, *options: str) -> list[str]:
    """The names of the files afterwards."""
    assert main(["certificates", "make", str(directory), *options]) == 0
    return sorted(path.name for path in directory.iterdir())


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "certificates"
    assert make(directory, "--client", "carl") == ["broker.pem", "ca-key.pem", "ca.pem", "carl.pem"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_what_exists_is_kept_unless_renewed(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make(tmp_path, "--client", "alice")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    alice = (tmp_path / "alice.pem").read_bytes()
    make(tmp_path, "--renew")
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]
    assert (tmp_path / "broker.pem").read_bytes() != before["broker.pem"]
    assert (tmp_path / "alice.pem").read_bytes() != alice


def test_client_and_broker_accept_each_other(tmp_path: Path) -> None:
    """By the files alone; the broker knows the client by the name."""
    make(tmp_path, "--host", "kafka.example", "--client", "alice")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(tmp_path / "broker.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    broker = SecuredBroker(tls=context)
    own = stores.identity_as_pem((tmp_path / "alice.pem").read_bytes(), "")
    tls = Tls((tmp_path / "ca.pem").read_bytes(), own.chain, own.key)

    async def work() -> None:
        async with broker.serving() as address, KafkaClient(address, security=Security(tls)):
            pass

    asyncio.run(work())
    assert broker.peer_certificates[0]["subject"] == ((("commonName", "alice"),),)


def test_show(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "--host", "kafka.example", "--host", "10.0.0.1", "--days", "30")
    capfd.readouterr()
    assert main(["certificates", "show", str(tmp_path / "broker.pem"), "--json"]) == 0
    broker, ca = json.loads(capfd.readouterr().out)
    assert broker["names"] == ["kafka.example", "localhost", "10.0.0.1", "127.0.0.1", "::1"]
    assert (broker["principal"], broker["issuer"], broker["is_authority"]) == (
        "User:CN=broker",
        "CN=Barnabas CA",
        False,
    )
    assert broker["days_left"] in (29, 30)
    assert ca["is_authority"]


def test_an_expired_certificate_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    authority = Authority.new("Old CA", 1_000_000_000_000)
    write_private(tmp_path / "old.pem", authority.issue("old", days=1).certificate)
    assert main(["certificates", "show", str(tmp_path / "old.pem")]) == 1
    assert "the certificate of CN=old has expired" in capfd.readouterr().err


def test_validity() -> None:
    authority = Authority.new("CA", NOW_MS)
    certificate = x509.load_pem_x509_certificate(authority.issue("x", ["h"], days=90).certificate)
    assert certificate.not_valid_before_utc.timestamp() * 1000 == NOW_MS - 3_600_000
    assert certificate.not_valid_after_utc.timestamp() * 1000 == NOW_MS + 90 * DAY_MS


def test_stores_of_java() -> None:
    authority = Authority.new("CA", NOW_MS)
    issued = authority.issue("alice")
    store = pkcs12_store(issued, authority.certificate, "alice", "pw")
    own = stores.identity_as_pem(store, "pw")
    assert own.chain == issued.certificate + authority.certificate
    assert own.key == issued.key
    assert stores.trusted_as_pem(pkcs12_trust(authority.certificate, "pw"), "pw") == authority.certificate


@pytest.mark.parametrize("name", ["broker", "ca", "ca-key", "../x", "a/b", ".x"])
def test_names_that_are_no_clients(tmp_path: Path, name: str) -> None:
    assert main(["certificates", "make", str(tmp_path), "--client", name]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["gone", "nothing", "another"])
def test_a_damaged_authority(tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    key = tmp_path / "ca-key.pem"
    if damage == "gone":
        key.unlink()
    else:
        key.write_bytes(Authority.new("CA", NOW_MS).key if damage == "another" else b"")
    assert main(["certificates", "make", str(tmp_path), "--client", "alice"]) == 1
    assert "ca-key.pem" in capfd.readouterr().err
    assert not (tmp_path / "alice.pem").exists()


def test_names_that_no_certificate_can_have() -> None:
    authority = Authority.new("CA", NOW_MS)
    for name, hosts in (("", []), ("x" * 65, []), ("x", ["kä.example"])):
        with pytest.raises(ClientError):
            authority.issue(name, hosts)
