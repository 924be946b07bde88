"""How a client connects: with TLS or without, anonymously or by SASL.

`security_properties.py` reads it from Kafka's properties; `tls.py` and `login.py` carry it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"

MECHANISMS: Final = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN, OAUTHBEARER)
"""The mechanisms of SASL that the client knows."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What the client trusts, and the certificate that it shows.

    `trusted` are certificates as PEM; empty for those of the system. `chain` and `key` are the client's certificates
    and private key as PEM, empty for none.
    """

    trusted: bytes = b""
    chain: bytes = b""
    key: bytes = field(default=b"", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    checks_certificate: bool = True


@dataclass(frozen=True, slots=True)
class UserLogin:
    """A user and a password, for PLAIN and SCRAM. Without a `mechanism`, those that the broker offers are tried, the
    strongest first; `may_weaken` says so of one that is being tried."""

    username: str
    password: str = field(repr=False)
    mechanism: str = ""
    may_weaken: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A bearer token, for OAUTHBEARER: from the client credentials grant of `endpoint_url` (RFC 6749, section 4.4),
    from a file, which a `file:` URL names, or without a signature in the name of `unsecured_subject`.

    `extensions` are sent beside the token (RFC 7628, section 3.1). `tls` is for the endpoint. With `header_urlencode`
    id and secret are encoded as RFC 6749 says in section 2.3.1; by default not, as by Kafka's clients and librdkafka.
    """

    endpoint_url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    unsecured_subject: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None
    header_urlencode: bool = False


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and login of all connections of a client; by default neither."""

    tls: Tls | None = None
    login: UserLogin | TokenLogin | None = None

    @property
    def username(self) -> str | None:
        """The name in the principal that brokers see; None if only they know it."""
        if isinstance(self.login, UserLogin):
            return self.login.username
        if isinstance(self.login, TokenLogin):
            return self.login.unsecured_subject or None
        return None if self.tls is not None and self.tls.chain else "ANONYMOUS"


PLAINTEXT: Final = Security()
