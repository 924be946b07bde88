"""A broker whose only listener asks for SASL, and the users that it knows."""

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.broker.security.sasl import jaas
from barnabas.clock import SystemClock
from compat_tests.conftest import new_cluster
from tools.waiting import PATIENCE_S

PASSWORD: Final = "the password"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class SaslCluster(NamedTuple):
    """`token(name)` is a token of a user, signed by the issuer whose keys the broker has; `forged(name)` is not."""

    bootstrap_servers: str
    token: Callable[[str], str]
    forged: Callable[[str], str]


def plain_settings(username: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    """librdkafka's settings for PLAIN."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": username,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def sasl_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    """The listener is called PLAINTEXT, as `--listen` names it."""
    key, other = (RSAKey.generate_key(2048, {"kid": "issuer"}) for _ in range(2))
    keys: Path = tmp_path_factory.mktemp("issuer") / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    credentials = {"username": "alice", "password": PASSWORD, "user_alice": PASSWORD}
    users = jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, options=credentials).line()
    cluster = new_cluster(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.plaintext.plain.sasl.jaas.config": users,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "connection.failed.authentication.delay.ms": "10",
        }
    )

    def signed(by: RSAKey) -> Callable[[str], str]:
        def token(name: str) -> str:
            now_s = SystemClock().now_ms() // 1000
            claims = {"sub": name, "aud": "kafka", "iat": now_s, "exp": now_s + 3600}
            return jwt.encode({"alg": "RS256", "kid": "issuer"}, claims, by)

        return token

    try:
        cluster.start()
        add_scram_users(AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **plain_settings()}))
        yield SaslCluster(cluster.bootstrap_servers, signed(key), signed(other))
    finally:
        cluster.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sockets of clients that cannot be made may be collected in a later test of this folder, as a thread of the client
    holds them for a while."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect those of clients that cannot be made before another folder's test does, to which they are an error."""
    yield
    gc.collect()


@pytest.fixture
def forgiven(sasl_cluster: SaslCluster) -> None:
    """A login after which the delays of failures from this address begin anew."""
    admin = AdminClient({"bootstrap.servers": sasl_cluster.bootstrap_servers, **plain_settings()})
    admin.list_topics(timeout=PATIENCE_S)


def add_scram_users(admin: AdminClient) -> None:
    """alice may log in by both kinds of SCRAM."""
    upsertions = [
        UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for altering in upsertions:  # librdkafka sends salted passwords
        for done in admin.alter_user_scram_credentials([altering]).values():
            done.result(PATIENCE_S)
    (described,) = admin.describe_user_scram_credentials(["alice"]).values()
    infos = described.result(PATIENCE_S).scram_credential_infos
    assert {(info.mechanism, info.iterations) for info in infos} == {
        (ScramMechanism.SCRAM_SHA_256, 4096),
        (ScramMechanism.SCRAM_SHA_512, 4096),
    }
