"""A broker that speaks TLS, and the files of its clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.certificates import Authority
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

RECORDS = [b"record %d" % number for number in range(1_000)]


@dataclass(frozen=True)
class TlsBroker:
    """`authority` has issued the certificates of the broker and of its clients; clients trust it by `trusted`, a file
    in PEM, and show the certificate and key in `client`. `strange` is another authority's certificate."""

    bootstrap_servers: str
    authority: Authority
    trusted: str
    strange: str
    client: str


@contextmanager
def tls_broker(directory: Path, client_auth: str = "none", **keys: str) -> Iterator[TlsBroker]:
    """The real command, with TLS on its only listener, and a topic `t`."""
    authority = Authority(directory)
    configs = {
        "listener.security.protocol.map": "PLAINTEXT:SSL",  # the listener of `--listen` has that name
        "ssl.keystore.location": str(authority.key_store("broker")),
        "ssl.truststore.location": str(authority.trust_store),
        "ssl.client.auth": client_auth,
        "offsets.topic.num.partitions": "1",
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    with BarnabasProcess(configs) as process:
        broker = TlsBroker(
            process.bootstrap_servers,
            authority,
            str(authority.trust_store),
            str(Authority(directory, "stranger").trust_store),
            str(authority.key_store("alice", "alice", common_name="alice")),
        )
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": broker.trusted,
            "ssl.certificate.location": broker.client,
            "ssl.key.location": broker.client,
        }
        administrator = AdminClient(settings)
        administrator.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        yield broker
