"""How a pipeline reaches a secured cluster: by the options of Barnabas' commands, for Spark's clients and librdkafka.

`--command-config FILE` has Kafka's client properties, in the words of Java or of librdkafka. The settings that come of
it contain certificates and keys themselves, not the names of files: executors run on other machines.
"""

import argparse
import os
from dataclasses import replace
from functools import cache

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import PLAINTEXT, SCRAM_SHA_512, Security, UserLogin
from barnabas.broker.client.security_options import (
    COMMAND_CONFIG_VARIABLE,
    PASSWORD_VARIABLE,
    Connection,
    ask_for_password,
)
from barnabas.spark_examples.topics import with_ports

OPTIONS = {
    "command_config": (
        "--command-config",
        "FILE",
        f"Kafka's client properties (security.protocol, ...); also {COMMAND_CONFIG_VARIABLE}",
    ),
    "login_user": ("--user", "NAME", "log in as this user, over TLS (SCRAM-SHA-512 unless the file says otherwise)"),
    "password": ("--password", "TEXT", f"the user's password; better in {PASSWORD_VARIABLE}, or asked for"),
    "ca": ("--ca", "FILE", "use TLS, and trust these CA certificates (PEM)"),
    "certificate": ("--certificate", "FILE", "use TLS, and show this certificate (PEM)"),
    "private_key": ("--key", "FILE", "the private key of --certificate, where it is in a file of its own (PEM)"),
}
"""Options by the names that `Connection` has for them."""


def add_connection_options(parser: argparse._ActionsContainer) -> None:
    """Add the options to a parser, or to one of its groups."""
    for name, (option, metavar, text) in OPTIONS.items():
        parser.add_argument(option, dest=name, metavar=metavar, help=text)


def connect(options: argparse.Namespace) -> None:
    """Have `options.kafka` and `options.client` begin with the settings that the options ask for, and
    `options.security` be the same for Barnabas' own client. Without --bootstrap-servers the servers are those of the
    file. Raises: ClientError.
    """
    given: dict[str, str | None] = {name: getattr(options, name) for name in OPTIONS}
    has_options = any(value is not None for value in given.values())
    if has_options or options.bootstrap_servers is not None:
        given["command_config"] = given["command_config"] or os.environ.get(COMMAND_CONFIG_VARIABLE)
        given["password"] = given["password"] or os.environ.get(PASSWORD_VARIABLE)
    connection = Connection(given, _ask)
    if options.bootstrap_servers is None and connection.bootstrap_servers is not None:
        options.bootstrap_servers = with_ports(connection.bootstrap_servers)
    if options.bootstrap_servers is None and has_options:
        raise ClientError("a user, TLS or a file of properties needs --bootstrap-servers")
    options.security = _with_mechanism(connection.security())
    if options.security == PLAINTEXT:
        return
    from barnabas.broker.client.security_configs import java_config, librdkafka_config

    options.kafka = [*java_config(options.security).items(), *options.kafka]
    options.client = [*librdkafka_config(options.security).items(), *options.client]


def _with_mechanism(security: Security) -> Security:
    """The same for clients that, unlike Barnabas' own, cannot try one mechanism of SASL after the other."""
    login = security.login
    if isinstance(login, UserLogin) and not login.mechanism:
        return replace(security, login=replace(login, mechanism=SCRAM_SHA_512))
    return security


@cache
def _ask(username: str) -> str:
    """The password, which is asked for once: programs parse their options twice."""
    return ask_for_password(username)
