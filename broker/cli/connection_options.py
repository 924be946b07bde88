"""The options of every command that talks to a broker: how it connects, and as whom.

`Command` adds them to each command that has `--bootstrap-server`, so that commands need not name them; `with_client`
calls for what they say. The password is asked for without echo where it is not given.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from typer.core import TyperOption

from barnabas.broker.client.client import ClientError
from barnabas.broker.client.security import PLAINTEXT, Security
from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties

PANEL: Final = "Connection"
"""The heading of these options in the help."""
PASSWORD_VARIABLE: Final = "BARNABAS_PASSWORD"
COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"
SERVERS: Final = "bootstrap_servers"
"""The parameter of commands that connect."""

_GIVEN: Final = "barnabas.connection"
_RUNNING: Final[ContextVar[Any]] = ContextVar("command", default=None)
"""The context of the command that is running."""


def connection_options(taken: Collection[str] = ()) -> list[TyperOption]:
    """New options, for one command; where it has `taken` --user or --key for something else, they are --as and
    --private-key."""
    return [
        _option(
            "--command-config",
            "FILE",
            "Kafka's client properties (security.protocol, ...); also BARNABAS_COMMAND_CONFIG.",
            variable=COMMAND_CONFIG_VARIABLE,
        ),
        _option(
            "--as" if "--user" in taken else "--user", "NAME", "Log in as this user, over TLS.", parameter="login_user"
        ),
        _option(
            "--password",
            "TEXT",
            "The user's password; better in BARNABAS_PASSWORD, or asked for.",
            variable=PASSWORD_VARIABLE,
        ),
        _option("--ca", "FILE", "Use TLS, and trust these CA certificates (PEM)."),
        _option("--certificate", "FILE", "Use TLS, and show this certificate (PEM)."),
        _option(
            "--private-key" if "--key" in taken else "--key",
            "FILE",
            "The private key of --certificate, where it is in a file of its own (PEM).",
            parameter="private_key",
        ),
    ]


def _option(
    name: str, metavar: str, help: str, *, variable: str | None = None, parameter: str | None = None
) -> TyperOption:
    return TyperOption(
        param_decls=[name] if parameter is None else [name, parameter],
        metavar=metavar,
        help=help,
        envvar=variable,
        show_envvar=False,
        expose_value=False,
        callback=_keep,
        rich_help_panel=PANEL,
    )


def _keep(context: Any, parameter: Any, value: str | None) -> str | None:
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value
    return value


def ask_for_password(username: str) -> str:
    """The password that somebody types at the terminal, without echo. Errors: ClientError if there is no terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        raise ClientError(f"no password for {username}: give it in {PASSWORD_VARIABLE}, or as --password") from error
    return getpass.getpass(f"Password of {username}: ")


def ask_nobody(username: str) -> str:
    """No password, while a line is being typed. Errors: ClientError."""
    raise ClientError(f"no password for {username}")


class Connection:
    """What the options of a command, or the variables in place of them, say.

    Args:
        given: the options' values by their names, None or absent where they are not given.
        ask: returns a user's password. Raises: ClientError.
    """

    def __init__(self, given: dict[str, str | None], ask: Callable[[str], str] = ask_for_password) -> None:
        self._given = given
        self._ask = ask
        config = given.get("command_config")
        self._properties = {} if config is None else _properties(Path(config))

    @property
    def bootstrap_servers(self) -> str | None:
        """The servers that the file names."""
        return self._properties.get("bootstrap.servers")

    def security(self) -> Security:
        """TLS and login. Options count before the file. Raises: ClientError."""
        values = dict(self._properties)
        user, password = self._given.get("login_user"), self._given.get("password")
        for option, key in _KEYS.items():
            if self._given.get(option) is not None:
                values[key] = str(self._given[option])
                for other in _REPLACED.get(option, ()):
                    values.pop(other, None)
        if password is not None and (user is not None or "sasl.password" not in values):
            values["sasl.password"] = password
        wants_tls = any(self._given.get(option) is not None for option in _OF_TLS)
        protocol = values.get("security.protocol", "").upper()
        if user is not None:
            # A password goes over TLS unless the file says otherwise.
            values["security.protocol"] = "SASL_PLAINTEXT" if "PLAINTEXT" in protocol and not wants_tls else "SASL_SSL"
        elif wants_tls:
            values["security.protocol"] = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
        if not values.get("security.protocol"):
            return PLAINTEXT
        if user is not None and password is None:
            values["sasl.password"] = self._ask(user)
        from barnabas.broker.client.security_properties import SecurityProperties  # not needed by most commands

        return SecurityProperties(values).security()


_KEYS: Final = {
    "login_user": "sasl.username",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "private_key": "ssl.key.location",
}
"""The properties that options set."""
_REPLACED: Final = {
    "login_user": ("sasl.jaas.config", "sasl.password"),
    "ca": ("ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.pem"),
    "certificate": ("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.key.location"),
}
"""The properties of the file that an option takes the place of."""
_OF_TLS: Final = ("ca", "certificate", "private_key")


@contextlib.contextmanager
def given_to(context: Any) -> Iterator[None]:
    """Have `connection` be what the command of a context was given."""
    token = _RUNNING.set(context)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def connection(context: Any = None, ask: Callable[[str], str] = ask_for_password) -> Connection:
    """What the command of a context, by default the running one, was given. Raises: ClientError."""
    context = context or _RUNNING.get()
    return Connection({} if context is None else context.meta.get(_GIVEN, {}), ask)


def servers(bootstrap_servers: str) -> str:
    """The servers of the running command: those of its options, else those of its file. Raises: ClientError."""
    context = _RUNNING.get()
    is_default = context is not None and context.get_parameter_source(SERVERS).name == "DEFAULT"
    return (connection().bootstrap_servers if is_default else None) or bootstrap_servers


def _properties(path: Path) -> dict[str, str]:
    try:
        return parse_properties(decode_properties(path.read_bytes()))
    except OSError as error:
        raise ClientError(f"{path} (--command-config) cannot be read: {error.strerror or error}") from error
    except PropertiesError as error:
        raise ClientError(f"{path} (--command-config), {error}") from error
