"""Passwords of the dynamic configuration: encrypted in the metadata store, as text in the running broker (KIP-226)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.definitions import PASSWORD
from barnabas.broker.configuration.keys import broker_key
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.security.tls.passwords import EncoderSettings

logger = logging.getLogger(__name__)

_KNOWN_MAX: Final = 100
"""The number of stored passwords that are kept decoded."""


def is_password(name: str) -> bool:
    """Whether the value of a broker key is a secret that is stored encrypted."""
    key = broker_key(name)
    return key is not None and key.type == PASSWORD


class StoredPasswords:
    """Encodes and decodes with `password.encoder.secret` of `config`, and decodes with `password.encoder.old.secret`
    what was encoded before the secret was changed."""

    def __init__(self, config: BrokerConfig, random_bytes: Callable[[int], bytes]) -> None:
        self._config = config
        self._random_bytes = random_bytes
        self._known: dict[str, str] = {}

    def encode(self, passwords: Mapping[str, str]) -> dict[str, str]:
        """Encoded passwords, by their keys. Blocking, some milliseconds each. Raises ApiError."""
        from barnabas.broker.security.tls.passwords import PasswordError, encode

        settings = self._settings()
        if settings is None:
            names = ", ".join(sorted(passwords))
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{names}: passwords are stored only encrypted: set password.encoder.secret in the broker's file",
            )
        try:
            return {name: encode(password, settings, self._random_bytes) for name, password in passwords.items()}
        except PasswordError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error

    def decoded(self, dynamic: Mapping[str, str]) -> Mapping[str, str]:
        """These overrides with all passwords decoded. Those that cannot be decoded are logged and left out, as in
        Kafka. A password that is not known yet takes some milliseconds."""
        found = {name: self._decode(name, text) for name, text in dynamic.items() if is_password(name)}
        if not found:
            return dynamic
        kept = {name: text for name, text in dynamic.items() if name not in found}
        return kept | {name: password for name, password in found.items() if password is not None}

    def _decode(self, name: str, text: str) -> str | None:
        if text in self._known:
            return self._known[text]
        from barnabas.broker.security.tls.passwords import PasswordError, decode

        old = self._config.value("password.encoder.old.secret")
        settings = self._settings()
        secrets = [*([] if settings is None else [settings.secret]), *([old] if isinstance(old, str) else [])]
        for secret in secrets:
            try:
                password = decode(text, secret)
            except PasswordError:
                continue
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[text] = password
            return password
        logger.error("the stored %s cannot be decoded (password.encoder.secret), and is left out", name)
        return None

    def _settings(self) -> EncoderSettings | None:
        from barnabas.broker.security.tls.passwords import EncoderSettings

        values = {field: self._config.value(f"password.encoder.{field.replace('_', '.')}") for field in _FIELDS}
        if values["secret"] is None:
            return None
        return EncoderSettings(**{field: value for field, value in values.items() if value is not None})  # type: ignore[arg-type]


_FIELDS: Final = ("secret", "keyfactory_algorithm", "cipher_algorithm", "key_length", "iterations")
