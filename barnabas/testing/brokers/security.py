"""TLS and users of a test's broker or cluster, on the files of `serve --secure`, and the configurations of clients."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.configuration import config as broker_config
from barnabas.clock import SystemClock

if TYPE_CHECKING:
    from barnabas.broker.cli.secure import Secured
    from barnabas.broker.cli.secure_clients import Account
    from barnabas.broker.server import Broker as Server

SASL_SSL: Final = "sasl_ssl"
ADDRESSES: Final = ("listeners", "advertised.listeners")
_DAY_MS: Final = 24 * 60 * 60 * 1000
CLIENTS: Final = ("confluent_kafka", "aiokafka", "kafka_python", "java")


class Security:
    """The certificates and users of a broker, or of a cluster; they stay through restarts and resets."""

    def __init__(self) -> None:
        self._secured: Secured | None = None
        self._certificates: BrokerCertificates | None = None
        self._temporary: Path | None = None

    @classmethod
    def of(cls, name: str) -> Security:
        """Errors: ValueError for anything but "sasl_ssl"."""
        if name.lower() != SASL_SSL:
            raise ValueError(f'security={name!r}: expected "{SASL_SSL}"')
        return cls()

    @property
    def names(self) -> frozenset[str]:
        """The users that there are."""
        return frozenset() if self._secured is None else frozenset(user.name for user in self._secured.users)

    def secure(self, options: Mapping[str, str], data_dir: object = None) -> dict[str, str]:
        """The options of a secured broker. The files are in the data directory that was given, else in a temporary
        one. Errors: ConfigError, OSError."""
        if self._secured is None:
            from barnabas.broker.cli.secure import secure

            self._secured = secure(self._directory(data_dir), broker_config.load(options=options), machine_names=())
        addresses = {
            key: f"SASL_SSL://{options[key].partition('://')[2]}" for key in ADDRESSES if key in options
        }  # the broker's own, and not those of the one that was secured first
        return {**self._secured.configs, **options, **addresses}

    def _directory(self, data_dir: object) -> Path:
        if data_dir is not None:
            return Path(str(data_dir).partition(",")[0]) / "secure"
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="barnabas-secure-"))
            atexit.register(self.forget)  # for brokers that are never stopped
        return self._temporary

    def prepare(self, server: Server) -> None:
        """Have a broker add the users when it starts."""
        from barnabas.broker.cli.secure import prepare

        assert self._secured is not None
        prepare(self._secured, server)

    async def add_user(self, name: str, server: Server) -> None:
        """Add a user by a running broker, the controller of a cluster. Errors: ApiError."""
        from barnabas.broker.api.first_users import FirstUser
        from barnabas.broker.cli.secure import add_users
        from barnabas.broker.client.users import new_password

        assert self._secured is not None
        with_user = self._secured._replace(users=(*self._secured.users, FirstUser(name, new_password())))
        await add_users(with_user, server)
        self._secured = with_user

    def account(self, name: str, bootstrap_servers: str) -> Account:
        """What a client of a user has to know."""
        from barnabas.broker.cli.secure import accounts

        assert self._secured is not None
        return accounts(self._secured, bootstrap_servers)[name]

    def certificates(self, servers: Callable[[], Sequence[Server]]) -> BrokerCertificates:
        """The certificates that the broker may present; `servers` returns the one that runs, if any."""
        from barnabas.broker.cli.secure import BROKER_FILE

        assert self._secured is not None
        if self._certificates is None:
            self._certificates = BrokerCertificates(self._secured.directory / BROKER_FILE, servers)
        return self._certificates

    def forget(self) -> None:
        """Remove temporary files, and the users with them."""
        self._secured = self._certificates = None
        if self._temporary is not None:
            atexit.unregister(self.forget)
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def is_known(user: str, server: Server) -> bool:
    """Whether a user may log in at a broker."""
    from barnabas.broker.quotas.alterations import config_entity

    entity = config_entity([("user", user)])
    return bool(server.services.configs.overrides(*entity))


class BrokerCertificates:
    """The certificates that secured brokers present to new connections, as faults of a test want it: written to their
    file, and read from there by the running brokers and by a later start. Broker's loop only.
    """

    def __init__(self, path: Path, servers: Callable[[], Sequence[Server]]) -> None:
        self._file = path
        self._servers = servers
        self._own = path.read_bytes()

    def put_own(self) -> None:
        """Present the broker's own certificate again."""
        self._put(self._own)

    def put_expired(self) -> None:
        """Present one that has expired a day ago."""
        from cryptography import x509

        from barnabas.broker.cli.authority import names_in

        self._put(self._issued(names_in(x509.load_pem_x509_certificate(self._own)), days_ago=2))

    def put_for_host(self, host: str) -> None:
        """Present one that names this host alone. Errors: ClientError for a name that no certificate can have."""
        self._put(self._issued([host]))

    def _issued(self, hosts: Sequence[str], days_ago: int = 0) -> bytes:
        """A certificate that is valid for a day, from so many days ago on, with those of its authority and its key."""
        from barnabas.broker.cli.authority import Authority

        issued_ms = SystemClock().now_ms() - days_ago * _DAY_MS
        own = Authority.load(self._file.parent, issued_ms)
        issued = own.issue("broker", hosts, days=1)
        return issued.certificate + own.certificate + issued.key

    def _put(self, content: bytes) -> None:
        from barnabas.broker.cli.authority import write_private

        if self._file.parent.exists():  # else the broker has been stopped, and its temporary files are removed
            write_private(self._file, content)
            for server in self._servers():
                if server.tls is not None:
                    server.tls.read_again()


def client_config(client: str, bootstrap_servers: str, account: Account | None) -> dict[str, Any]:
    """The configuration of a client; without an account the address alone. Errors: ValueError for an unknown client."""
    if client not in CLIENTS:
        raise ValueError(f"client={client!r}: expected one of {', '.join(CLIENTS)}")
    if account is None:
        return {"bootstrap_servers" if client in CLIENTS[1:3] else "bootstrap.servers": bootstrap_servers}
    from barnabas.broker.cli import secure_clients

    if client == "confluent_kafka":
        return dict(secure_clients.librdkafka_config(account))
    if client == "java":
        return dict(line.split("=", 1) for line in secure_clients.java_properties(account).splitlines())
    arguments: dict[str, Any] = dict(secure_clients.python_arguments(account))
    if client == "kafka_python":
        return arguments | {"ssl_cafile": account.ca}
    import ssl

    return arguments | {"ssl_context": ssl.create_default_context(cafile=account.ca)}
