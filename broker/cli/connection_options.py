"""The options of every command that talks to a broker: how it connects, and as whom.

`Command` adds them to each command that has `--bootstrap-server`, so that commands need not name them; `with_client`
calls for what they say (`broker/client/security_options.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any, Final

from typer.core import TyperOption

from barnabas.broker.client.security_options import (
    COMMAND_CONFIG_VARIABLE,
    PASSWORD_VARIABLE,
    Connection,
    ask_for_password,
)

PANEL: Final = "Connection"
"""The heading of these options in the help."""
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
