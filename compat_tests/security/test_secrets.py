"""The secrets of a run of `serve --secure`, with logins good and bad by each mechanism, requests that are answered and
some that are not understood: they are in nothing that others can see."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

from barnabas.broker.configuration.properties import parse_properties
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tools.attack.hostile import frame
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

READY: Final = re.compile(r"ready: SASL_SSL://(\S+) ")
TOKEN_URL: Final = re.compile(r"token\.endpoint\.url=(http://\S+)/oauth/token")
OF_ALICE: Final = "alices-own-password"
WRONG: Final = "a-wrong-password"
KEY_PASSWORD: Final = "password-of-a-store"
KEY_SECRET: Final = "secret-of-stored-passwords"
FORGED_SIGNATURE: Final = "c2lnbmVkLWJ5LW5vYm9keS1hdC1hbGw"
FOREVER_S: Final = 2.0**31


class Secured(BarnabasProcess):
    """`serve --secure`, with the HTTP port, and logs at their most verbose."""

    http = ""

    @property
    def directory(self) -> Path:
        return self.log_dir / "secure"

    def _command(self) -> list[str]:
        return [*super()._command(), "--secure", "--http", "127.0.0.1:0", "--log-level", "DEBUG"]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        for line in printed:
            if ready := READY.match(line):
                self._address = ready[1]
            if found := TOKEN_URL.search(line):
                self.http = found[1]
        return bool(self.http)

    def printed(self) -> str:
        return self._output_file.read_text()

    def password(self, name: str) -> str:
        return parse_properties((self.directory / "users.properties").read_text())[name]

    def client(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.directory / "ca.pem"),
            "log_level": 0,
        }


def log_in(broker: Secured) -> None:
    """Good and bad logins by each mechanism."""
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name, password in (("admin", broker.password("admin")), ("client", broker.password("client"))):
            AdminClient(broker.client(name, password, mechanism)).list_topics(timeout=PATIENCE_S)
        for name in ("client", "nobody"):
            errors: list[Any] = []
            client = AdminClient(broker.client(name, WRONG, mechanism) | {"error_cb": errors.append})
            wait_until(lambda client=client, errors=errors: client.poll(0.1) is not None and errors)  # type: ignore[misc]


def log_in_by_token(broker: Secured, token: str, forged: str) -> None:
    """A login with a token, and one with a token that is not accepted; then, as kafkajs and aiokafka take the answer to
    that for a success, a request which they would send."""
    config = broker.client("", "", "OAUTHBEARER")
    del config["sasl.username"], config["sasl.password"]
    good = AdminClient(config | {"oauth_cb": lambda _: (token, FOREVER_S)})
    good.poll(0)  # calls oauth_cb
    good.list_topics(timeout=PATIENCE_S)
    errors: list[Any] = []
    bad = AdminClient(config | {"oauth_cb": lambda _: (forged, FOREVER_S), "error_cb": errors.append})
    wait_until(lambda: bad.poll(0.1) is not None and errors)
    initial = b"n,,\1auth=Bearer %s\1\1" % forged.encode()
    with speaking(broker) as end:
        send(end, SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        send(end, SaslAuthenticateRequest(auth_bytes=initial), 1)
        send(end, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 8)
        until_it_ends(end)


def alter(broker: Secured) -> AdminClient:
    """Add a user, and set configs that have passwords, one of them wrong; returns the administrator's client."""
    admin = AdminClient(broker.client("admin", broker.password("admin")))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion("alice", credential, OF_ALICE.encode())
    admin.alter_user_scram_credentials([upsertion])["alice"].result(PATIENCE_S)
    AdminClient(broker.client("alice", OF_ALICE)).list_topics(timeout=PATIENCE_S)
    certificate = PKCS12Certificate(x509.load_pem_x509_certificate((broker.directory / "ca.pem").read_bytes()), b"ca")
    store = broker.directory / "trusted.p12"
    store.write_bytes(serialize_java_truststore([certificate], BestAvailableEncryption(KEY_PASSWORD.encode())))
    trust = {"type": "PKCS12", "location": str(store), "password": KEY_PASSWORD}
    set_configs(admin, {f"listener.name.sasl_ssl.ssl.truststore.{key}": value for key, value in trust.items()})
    for key, value in (
        ("listener.name.sasl_ssl.ssl.truststore.password", WRONG),
        ("listener.name.sasl_ssl.ssl.key.password", WRONG),
        ("listener.name.sasl_ssl.plain.sasl.jaas.config", f'no.such.Module required password="{WRONG}";'),
    ):
        with pytest.raises(KafkaException):
            set_configs(admin, {key: value})
    return admin


def set_configs(admin: AdminClient, values: dict[str, str]) -> None:
    """Set configs of the broker. Raises KafkaException."""
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(PATIENCE_S)


def described(admin: AdminClient) -> str:
    """All configs of the broker, as a client reads them."""
    (found,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    configs = found.result(PATIENCE_S)
    assert "ssl.keystore.location" in configs
    return "\n".join(f"{each.name}={each.value} {each.synonyms}" for each in configs.values())


def broken(broker: Secured) -> None:
    """Send what is no message of the mechanism, in which there is a password, and see the connection end."""
    secret = broker.password("client").encode()
    for payload in (
        secret * 3,
        b"\0\x24\0\x02\0\0\0\x02\0\0\0" + b"\xff" + secret,
        b"\0\x24\0\x00\0\0\0\x02\0\0\0\0\0\x18" + secret,
    ):
        with speaking(broker) as end:
            send(end, SaslHandshakeRequest(mechanism="PLAIN"), 1)
            end.sendall(len(payload).to_bytes(4, "big") + payload)
            until_it_ends(end)


@contextlib.contextmanager
def speaking(broker: Secured) -> Iterator[ssl.SSLSocket]:
    """A connection with TLS."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    context = ssl.create_default_context(cafile=str(broker.directory / "ca.pem"))
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as end,
    ):
        end.settimeout(PATIENCE_S)
        yield end


def send(end: ssl.SSLSocket, request: Message, version: int) -> None:
    end.sendall(frame(request, version))


def until_it_ends(end: ssl.SSLSocket) -> None:
    with contextlib.suppress(ConnectionError):
        while end.recv(4096):
            pass


def pages(broker: Secured) -> str:
    """The pages of the HTTP port, and its refusal of a token."""
    told = []
    for path in ("/metrics", "/", "/oauth/jwks", "/no-such-page"):
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(broker.http + path) as response:
            told.append(response.read().decode())
    form = {"grant_type": "client_credentials", "client_id": "client", "client_secret": WRONG}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{broker.http}/oauth/token", urllib.parse.urlencode(form).encode())
    return "\n".join([*told, refused.value.read().decode()])


def granted(broker: Secured) -> str:
    """A token."""
    form = {"grant_type": "client_credentials", "client_id": "client", "client_secret": broker.password("client")}
    with urllib.request.urlopen(f"{broker.http}/oauth/token", urllib.parse.urlencode(form).encode()) as response:
        found = re.search(r'"access_token": ?"([^"]+)"', response.read().decode())
    assert found is not None
    return found[1]


def test_secrets_are_nowhere() -> None:
    with Secured({"password.encoder.secret": KEY_SECRET}) as broker:
        log_in(broker)
        token = granted(broker)
        header, claims, _ = token.split(".")
        forged = f"{header}.{claims}.{FORGED_SIGNATURE}"
        log_in_by_token(broker, token, forged)
        admin = alter(broker)
        broken(broker)
        command = [sys.executable, "-m", "barnabas", "topics", "list", "--user", "client",
                   "--ca", str(broker.directory / "ca.pem"), "-b", broker.bootstrap_servers]  # fmt: skip
        refused = children.run(
            command, env=children.environment({"BARNABAS_PASSWORD": WRONG}), capture_output=True, text=True
        )
        seen = {
            "described configs": described(admin),
            "pages": pages(broker),
            "processes": subprocess.run(
                ["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
            ).stdout,
            "a refused command": refused.stdout + refused.stderr,
        }
        keys = [re.sub(r"-----[^-]+-----|\s", "", (broker.directory / name).read_text())
                for name in ("ca-key.pem", "oauth-key.pem")]  # fmt: skip
        passwords = [broker.password("admin"), broker.password("client"), OF_ALICE, WRONG, KEY_PASSWORD, token, forged]
        broker.stop()
        seen |= {"log": broker.log_text(), "output": broker.printed()}
    assert "failed to authenticate" in seen["log"]
    assert "Metadata before the client has authenticated" in seen["log"]
    assert "barnabas_" in seen["pages"] or "kafka_" in seen["pages"]
    encoded = [base64.b64encode(each.encode()).decode() for each in passwords]
    for secret in [*passwords, *encoded, *(key[40:80] for key in keys)]:
        assert [where for where, text in seen.items() if secret in text] == []
    assert KEY_SECRET not in seen["log"] + seen["described configs"] + seen["pages"] + seen["output"]
