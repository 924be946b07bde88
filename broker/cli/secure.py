"""`barnabas serve --secure [DIR]`: a broker, or with `--brokers` a cluster, with TLS, users and an authorizer, from
nothing.

Everything that lasts is in DIR, which its owner alone may read: the CA, the broker's certificate, the passwords of two
users, the key of tokens. A later start finds it there, and makes only what is missing; a certificate that lacks a name
or is about to expire is issued anew. The files for clients are written when the addresses are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509

from barnabas.broker.api.first_users import FirstUser, add_first_users
from barnabas.broker.api.local import LocalClient, LocalResources
from barnabas.broker.cli import authority
from barnabas.broker.cli.one_broker import EXIT_FAILURE, read_configuration, refuse, serve_one
from barnabas.broker.cli.secure_clients import Account, instructions, java_properties, librdkafka_properties
from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.users import new_password
from barnabas.broker.configuration.config import DEFAULT, BrokerConfig, ConfigError
from barnabas.broker.configuration.listeners import PLAINTEXT, SASL_SSL
from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties
from barnabas.broker.observability import logs
from barnabas.clock import SystemClock
from barnabas.inflight_budget import InflightBudget

if TYPE_CHECKING:
    import argparse

    from barnabas.broker.environment import Environment
    from barnabas.broker.http.oauth import Issuer
    from barnabas.broker.server import Broker

logger = logging.getLogger(__name__)

ADMINISTRATOR: Final = "admin"
CLIENT: Final = "client"
USERS_FILE: Final = "users.properties"
LINES_FILE: Final = "clients.txt"
BROKER_FILE: Final = "broker.pem"
TOKEN_KEY_FILE: Final = "oauth-key.pem"
JWKS_FILE: Final = "jwks.json"
STORE_PASSWORD: Final = "barnabas"
"""The password of the PKCS12 stores, which Java requires; the directory protects them."""
ISSUER: Final = "barnabas"
AUDIENCE: Final = "kafka"
MECHANISMS_BEFORE: Final[Mapping[str, str]] = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}
"""A configuration with a listener of SASL is valid with it, before that has what follows from the directory."""

_REQUEST_BYTES: Final = 1024 * 1024
"""More than the requests of the first users have."""
_RENEWED_DAYS_BEFORE: Final = 30
_MODULES: Final = "org.apache.kafka.common.security"


class Secured(NamedTuple):
    """The content of the directory; `configs` are the keys of the broker's configuration that follow from it."""

    directory: Path
    users: tuple[FirstUser, ...]
    token_key: bytes | None
    configs: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<secured by {self.directory}>"

    @property
    def of_cluster(self) -> dict[str, str]:
        """The configs that the brokers of a cluster share, which have a listener of their own among each other."""
        return {key: value for key, value in self.configs.items() if key not in _AMONG_BROKERS}

    @property
    def later(self) -> Secured:
        """The same for a broker that starts again: the passwords, which were new, may have been changed meanwhile."""
        return self._replace(users=tuple(replace(user, has_new_password=False) for user in self.users))


def main(options: argparse.Namespace, environ: Mapping[str, str], environment: Environment | None = None) -> int:
    """Serve as `barnabas serve`, secured; exit status as that."""
    try:
        resolution = read_configuration(options, environ, unless_set=MECHANISMS_BEFORE)
        if resolution.config is None:
            return refuse(resolution.errors)
        directory = directory_of(options.secure, resolution.config.log_dirs[0])
        secured = secure(directory, resolution.config)
    except ConfigError as error:
        return refuse(error.problems)
    except (ClientError, OSError) as error:
        return could_not_secure(error)
    from barnabas.broker.cli.process import run

    secured_run = partial(run, prepare=partial(prepare, secured), on_ready=partial(tell_clients, secured))
    return serve_one(options, environ, environment, also=secured.configs, run=secured_run)


def could_not_secure(error: ClientError | OSError) -> int:
    """Print why; returns the exit status."""
    told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
    sys.stderr.write(f"barnabas: --secure: {logs.escape(told)}\n")
    return EXIT_FAILURE


def directory_of(given: str, data_directory: str) -> Path:
    """DIR, by default in the data directory. Raises: ConfigError."""
    directory = Path(given or os.path.join(data_directory, "secure")).absolute()
    if directory.is_file():
        raise ConfigError([f"--secure {given} is a file: name the configuration file before --secure, or a directory"])
    return directory


def secure(directory: Path, config: BrokerConfig, machine_names: Sequence[str] | None = None) -> Secured:
    """Make what the directory lacks, and return what it has. The certificate is for these names of the machine, by
    default all. Raises: ConfigError, ClientError, OSError.
    """
    configs = _listener_configs(config)
    authority.make_private_directory(directory)
    now_ms = SystemClock().now_ms()
    names = asyncio.run(authority.names_of_this_machine()) if machine_names is None else machine_names
    _make_certificates(directory, _hosts(config, names), now_ms)
    passwords, made = _passwords(directory)
    users = tuple(
        FirstUser(name, passwords[name], name == ADMINISTRATOR, has_new_password=name in made)
        for name in (ADMINISTRATOR, CLIENT)
    )
    has_issuer = config.barnabas_http_address is not None
    token_key = _token_key(directory) if has_issuer else None
    if token_key is not None:
        authority.write_private(directory / JWKS_FILE, _key_set(token_key))
    configs |= _security_configs(directory, users, has_issuer=has_issuer)
    given = {key: value for key, value in configs.items() if config.source(key) == DEFAULT or key in _LISTENERS}
    return Secured(directory, users, token_key, given)


_LISTENERS: Final = ("listeners", "advertised.listeners")
_AMONG_BROKERS: Final = ("security.inter.broker.protocol", "sasl.mechanism.inter.broker.protocol")


def _listener_configs(config: BrokerConfig) -> dict[str, str]:
    """The configured listener, as one of SASL_SSL. Raises: ConfigError if there are several, or others."""
    listeners = config.listeners
    if len(listeners) != 1 or listeners[0].security_protocol not in (PLAINTEXT, SASL_SSL):
        raise ConfigError(["--secure sets up one listener: give its address with --listen, and leave `listeners` out"])
    [listener] = listeners
    host = f"[{listener.host}]" if listener.host and ":" in listener.host else listener.host or ""
    configs = {"listeners": f"{SASL_SSL}://{host}:{listener.port}"}
    if "advertised.listeners" in config.raw:
        configs["advertised.listeners"] = f"{SASL_SSL}://{config.raw['advertised.listeners'].partition('://')[2]}"
    return configs


def _security_configs(directory: Path, users: Sequence[FirstUser], *, has_issuer: bool) -> dict[str, str]:
    known = " ".join(f'user_{user.name}="{user.password}"' for user in users)
    own = next(user for user in users if user.is_administrator)
    login = f'username="{own.name}" password="{own.password}"'
    listener = "listener.name.sasl_ssl"
    mechanisms = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    configs = {
        "security.inter.broker.protocol": SASL_SSL,
        "sasl.mechanism.inter.broker.protocol": mechanisms[0],
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / BROKER_FILE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / authority.CA_FILE),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{own.name}",
        f"{listener}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {known};",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required {login};",
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required {login};",
    }
    if has_issuer:
        mechanisms.append("OAUTHBEARER")
        module = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
        validator = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        configs |= {
            f"{listener}.oauthbearer.sasl.jaas.config": f"{module} required;",
            f"{listener}.oauthbearer.sasl.server.callback.handler.class": validator,
            "sasl.oauthbearer.jwks.endpoint.url": (directory / JWKS_FILE).as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
    return configs | {"sasl.enabled.mechanisms": ",".join(mechanisms)}


# -- the directory


def _hosts(config: BrokerConfig, machine_names: Sequence[str]) -> list[str]:
    """Names and addresses by which clients may reach the broker."""
    [listener] = config.listeners
    named = [each for each in (listener.advertised_host, listener.host) if each and each not in ("0.0.0.0", "::")]
    return authority.hosts_of([*named, *machine_names])


def _make_certificates(directory: Path, hosts: Sequence[str], now_ms: int) -> None:
    try:
        own = authority.Authority.load(directory, now_ms)
    except FileNotFoundError as error:
        if (directory / authority.CA_FILE).exists() or (directory / authority.CA_KEY_FILE).exists():
            raise ClientError(
                f"{error.filename} is missing: restore it, or remove {directory} to begin anew"
            ) from error
        own = authority.Authority.new("Barnabas CA", now_ms)
        authority.write_private(directory / authority.CA_KEY_FILE, own.key)
        authority.write_private(directory / authority.CA_FILE, own.certificate)
    if not _is_valid_for(directory / BROKER_FILE, hosts, now_ms):
        issued = own.issue("broker", hosts)
        authority.write_private(directory / BROKER_FILE, issued.certificate + own.certificate + issued.key)
    if not (directory / "client.p12").exists():
        issued = own.issue(CLIENT)
        store = authority.pkcs12_store(issued, own.certificate, CLIENT, STORE_PASSWORD)
        authority.write_private(directory / "client.p12", store)
        authority.write_private(directory / "truststore.p12", authority.pkcs12_trust(own.certificate, STORE_PASSWORD))


def _is_valid_for(path: Path, hosts: Sequence[str], now_ms: int) -> bool:
    """Whether the certificate in a file is for all these names, and valid for some time. Raises: OSError."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        there = set(authority.names_in(certificate))
    except (FileNotFoundError, ValueError):
        return False
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    left = certificate.not_valid_after_utc - now
    return {_plain(host) for host in hosts} <= there and left > datetime.timedelta(days=_RENEWED_DAYS_BEFORE)


def _plain(host: str) -> str:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    return host


def _passwords(directory: Path) -> tuple[dict[str, str], list[str]]:
    """The users' passwords, which are made where they are missing, and the users whose were. Raises: ClientError,
    OSError."""
    path = directory / USERS_FILE
    try:
        passwords = dict(parse_properties(decode_properties(path.read_bytes())))
    except FileNotFoundError:
        passwords = {}
    except PropertiesError as error:
        raise ClientError(f"{path}, {error}") from error
    missing = [name for name in (ADMINISTRATOR, CLIENT) if not passwords.get(name)]
    for name in missing:
        passwords[name] = new_password()
    if missing:
        lines = [f"{name}={password}\n" for name, password in passwords.items()]
        authority.write_private(path, "".join(lines).encode())
    return passwords, missing


def _token_key(directory: Path) -> bytes:
    """The key of tokens, which is made where it is missing. Raises: OSError."""
    path = directory / TOKEN_KEY_FILE
    if not path.exists():
        authority.write_private(path, authority.Authority.new(ISSUER, SystemClock().now_ms()).key)
    return path.read_bytes()


def _key_set(token_key: bytes) -> bytes:
    """The file of the key that checks tokens."""
    from barnabas.broker.http.oauth import Issuer, key_set_text

    issuer = Issuer(token_key, {}, issuer=ISSUER, audience=AUDIENCE, clock=SystemClock(), random_bytes=os.urandom)
    return key_set_text(issuer).encode()


# -- the broker


def prepare(secured: Secured, broker: Broker) -> None:
    """Have a broker add the first users, and issue tokens, when it starts."""
    broker.before_clients = partial(add_users, secured, broker)
    if secured.token_key is not None:
        broker.more_routes = _issuer(secured, secured.token_key, broker).routes


async def add_users(secured: Secured, broker: Broker) -> None:
    """Add the users that are missing, and set passwords that are new. Raises: ApiError."""
    assert broker.dispatcher is not None
    environment, config = broker.environment, broker.config
    resources = LocalResources(
        broker.dispatcher, InflightBudget(_REQUEST_BYTES), _REQUEST_BYTES, broker.timers, environment.threads
    )
    client = LocalClient(resources, config.inter_broker_listener_name, "barnabas-secure")
    threads, random_bytes = environment.threads, environment.random_bytes
    added = await add_first_users(client, secured.users, threads, random_bytes, broker.timers)
    if added:
        logger.info("users have passwords of %s: %s", secured.directory / USERS_FILE, ", ".join(added))


def _issuer(secured: Secured, key: bytes, broker: Broker) -> Issuer:
    from barnabas.broker.http.oauth import Issuer

    return Issuer(
        key,
        {user.name: user.password for user in secured.users},
        issuer=ISSUER,
        audience=AUDIENCE,
        clock=broker.clock,
        random_bytes=broker.environment.random_bytes,
    )


def accounts(secured: Secured, bootstrap_servers: str) -> dict[str, Account]:
    """What each user's clients have to know, by the user's name."""
    ca = str(secured.directory / authority.CA_FILE)
    return {user.name: Account(bootstrap_servers, user.name, user.password, ca) for user in secured.users}


def write_client_files(secured: Secured, bootstrap_servers: str) -> None:
    """Write the files of clients that contain the brokers' addresses. Raises: OSError."""
    of_users = accounts(secured, bootstrap_servers)
    for name, content in (
        ("admin.properties", java_properties(of_users[ADMINISTRATOR])),
        ("client.properties", java_properties(of_users[CLIENT])),
        ("librdkafka.properties", librdkafka_properties(of_users[CLIENT])),
    ):
        authority.write_private(secured.directory / name, content.encode())


def tell_clients(secured: Secured, broker: Broker) -> None:
    """Write the files of a broker's clients, and print what to paste."""
    servers = ",".join(str(each).partition("://")[2] for each in broker.socket_server.advertised)
    tell(secured, servers, token_url(broker.http_port, has_tls=broker.config.has_http_tls))


def token_url(http_port: int | None, *, has_tls: bool) -> str | None:
    """The address of the issuer of tokens; None without an HTTP port."""
    return None if http_port is None else f"{'https' if has_tls else 'http'}://127.0.0.1:{http_port}/oauth/token"


def tell(secured: Secured, servers: str, issuer_url: str | None) -> None:
    """Write the clients' files, and print what to paste. A password is printed on a terminal alone: elsewhere somebody
    may keep what is printed."""
    account = accounts(secured, servers)[CLIENT]
    issuer_url = None if secured.token_key is None else issuer_url
    directory = str(secured.directory)
    lines = secured.directory / LINES_FILE
    try:
        write_client_files(secured, servers)
        authority.write_private(lines, instructions(account, directory, issuer_url).encode())
    except OSError as error:
        logger.warning("the files of clients cannot be written: %s: %s", error.filename, error.strerror)
    is_seen = sys.stdout is not None and sys.stdout.isatty()
    shown = account if is_seen else Account(account.bootstrap_servers, CLIENT, "PASSWORD", account.ca)
    where = "" if is_seen else f"PASSWORD is in {secured.directory / USERS_FILE}; {lines} has these lines with it\n"
    with contextlib.suppress(OSError, AttributeError):
        sys.stdout.write(f"{instructions(shown, directory, issuer_url)}{where}")
        sys.stdout.flush()


__all__ = [
    "MECHANISMS_BEFORE",
    "Secured",
    "accounts",
    "add_users",
    "could_not_secure",
    "directory_of",
    "main",
    "prepare",
    "secure",
    "tell",
    "tell_clients",
    "token_url",
    "write_client_files",
]
