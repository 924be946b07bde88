"""What the options of a command say about its connection, beside a file of Kafka's client properties: TLS, and a user.

Commands and Spark pipelines share it. The password is asked for without echo where it is not given.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import PLAINTEXT, Security
from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties

PASSWORD_VARIABLE: Final = "BARNABAS_PASSWORD"
COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"


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

    def __init__(self, given: Mapping[str, str | None], ask: Callable[[str], str] = ask_for_password) -> None:
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


def _properties(path: Path) -> dict[str, str]:
    try:
        return parse_properties(decode_properties(path.read_bytes()))
    except OSError as error:
        raise ClientError(f"{path} (--command-config) cannot be read: {error.strerror or error}") from error
    except PropertiesError as error:
        raise ClientError(f"{path} (--command-config), {error}") from error
