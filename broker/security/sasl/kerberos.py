"""SASL's mechanism GSSAPI, Kerberos, on the side of a broker that is logged in to.   RFC 4752.

Source: SaslServerAuthenticator and SaslServerCallbackHandler of Kafka, and GssKrb5Server of Java. The tokens of a
security context are exchanged until it is established; then the broker offers its security layers, which is none (what
follows is not wrapped: encryption is TLS's), and the client chooses it. The client's principal becomes a short name by
`kerberos_names.py`; the authorization id of its last message is ignored, as in Kafka. A key table is read for each
login, so that a changed one counts at once.

The package `gssapi` calls the library of the system (MIT's krb5), which reads files and writes a replay cache: each
step is taken in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from barnabas.broker.security.sasl.kerberos_names import NoShortName, ShortNamer, parse
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity, PreparationFailed
from barnabas.threads import Threads

MECHANISM: Final = "GSSAPI"

NO_LAYER: Final = 1
"""The bit of no security layer, in the first byte of the broker's offer and of the client's choice."""

STEPS_MAX: Final = 2
"""The steps of logins that are taken at the same time: clients that have not logged in leave threads for others."""

_OFFER: Final = bytes((NO_LAYER, 0, 0, 0))
"""No layer, and, since there is none, 0 as the maximum size of a message (RFC 4752, section 3.2)."""


class KerberosError(Exception):
    """The library of Kerberos has refused a token, a key table or a principal. The text is for the log."""


class Context(Protocol):
    """A security context on the accepting side. Its methods block, and raise KerberosError."""

    def step(self, token: bytes) -> bytes:
        """Take the client's next token; returns the answer, which may be empty."""
        ...

    def is_established(self) -> bool:
        """Whether the context needs no more tokens."""
        ...

    def initiator(self) -> str:
        """The client's principal, as `alice@EXAMPLE.COM`."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """A message with the signature of the context."""
        ...

    def unwrap(self, message: bytes) -> bytes:
        """The content of such a message."""
        ...


class Library(Protocol):
    """The library of Kerberos, for one principal of a broker. Its methods block."""

    def accept(self) -> Context:
        """A new context. Raises KerberosError if the key table cannot be read, or lacks the principal."""
        ...

    def default_realm(self) -> str:
        """That of krb5.conf; empty if it has none."""
        ...


class Kerberos:
    """GSSAPI; `names` makes the rules of a default realm."""

    def __init__(self, library: Library, names: Callable[[str], ShortNamer], threads: Threads) -> None:
        self._library = library
        self._make_names = names
        self._names: ShortNamer | None = None
        self._threads = threads
        self._steps = asyncio.Semaphore(STEPS_MAX)

    async def call(self, step: Callable[[bytes], bytes], token: bytes) -> bytes:
        """Take a step in a thread, after those before it. Raises what the step raises."""
        async with self._steps:
            return await self._threads.call(step, token)

    def prepare(self) -> None:
        """Check that the key table has the principal. Blocking. Raises PreparationFailed."""
        try:
            self.accept()
        except KerberosError as error:
            raise PreparationFailed(f"sasl.jaas.config for GSSAPI: {error}") from error

    def start(self) -> _Exchange:
        return _Exchange(self)

    def accept(self) -> Context:
        """A new context. Blocking. Raises KerberosError."""
        if self._names is None:
            self._names = self._make_names(self._library.default_realm())
        return self._library.accept()

    def identity_of(self, principal: str) -> Identity:
        """The identity of a client. Raises NoShortName."""
        assert self._names is not None
        if "\\" in principal:
            # MIT's way to write a / or @ inside a component; cut there, it would be somebody else's name.
            raise NoShortName(f"the Kerberos name {principal} has escaped characters")
        return Identity(self._names.short_name(parse(principal)))


class _Exchange:
    """A login. Its steps run in threads, one after the other."""

    def __init__(self, kerberos: Kerberos) -> None:
        self._kerberos = kerberos
        self._context: Context | None = None
        self._take: Callable[[bytes], bytes] = self._take_token
        self.identity: Identity | None = None

    async def take(self, message: bytes) -> bytes:
        try:
            return await self._kerberos.call(self._take, message)
        except (KerberosError, NoShortName) as error:
            self._take = _refuse
            raise AuthenticationFailed(reason=str(error)) from error
        except AuthenticationFailed:
            self._take = _refuse
            raise

    def _take_token(self, token: bytes) -> bytes:
        if self._context is None:
            self._context = self._kerberos.accept()
        answer = self._context.step(token)
        if self._context.is_established():
            if not answer:
                return self._offer(self._context)
            self._take = self._take_nothing
        return answer

    def _take_nothing(self, message: bytes) -> bytes:
        assert self._context is not None
        if message:
            raise AuthenticationFailed(reason="a message where the client has nothing to say")
        return self._offer(self._context)

    def _offer(self, context: Context) -> bytes:
        self._take = self._take_choice
        return context.wrap(_OFFER)

    def _take_choice(self, message: bytes) -> bytes:
        assert self._context is not None
        choice = self._context.unwrap(message)
        if len(choice) < len(_OFFER) or not choice[0] & NO_LAYER:
            raise AuthenticationFailed(reason="the client asks for a security layer; none is offered")
        self.identity = self._kerberos.identity_of(self._context.initiator())
        self._take = _refuse
        return b""


def _refuse(message: bytes) -> bytes:
    raise AuthenticationFailed(reason="a message after the end of the exchange")


# --- the package gssapi -----------------------------------------------------------------------------


def find_package() -> Any:
    """The package `gssapi`. Raises ImportError, also if the library of the system is missing."""
    import gssapi

    return gssapi


class SystemLibrary:
    """The library of the system, for a principal whose keys are in a key table; without its path, in the one that
    krb5.conf names."""

    def __init__(self, package: Any, principal: str, key_table: str | None) -> None:
        self._gssapi = package
        self._principal = principal
        self._key_table = key_table

    def accept(self) -> Context:
        gssapi = self._gssapi
        try:
            name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
            store = None if self._key_table is None else {"keytab": f"FILE:{self._key_table}"}
            credentials = gssapi.Credentials(
                name=name,
                usage="accept",
                mechs=[gssapi.MechType.kerberos],
                **({} if store is None else {"store": store}),
            )
            return SystemContext(gssapi, gssapi.SecurityContext(creds=credentials, usage="accept"))
        except gssapi.exceptions.GSSError as error:
            where = "the default key table" if self._key_table is None else self._key_table
            raise KerberosError(f"{self._principal} in {where}: {told(error)}") from error

    def default_realm(self) -> str:
        gssapi = self._gssapi
        try:
            name = gssapi.Name("name", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
        except gssapi.exceptions.GSSError:
            return ""
        return str(name).rpartition("@")[2]


class SystemContext:
    """A context of the system's library, on either side."""

    def __init__(self, package: Any, context: Any) -> None:
        self._gssapi = package
        self._context = context

    def step(self, token: bytes | None) -> bytes:
        return self._call(self._context.step, token) or b""

    def is_established(self) -> bool:
        return bool(self._call(lambda: self._context.complete))  # raises what the last step has put off

    def initiator(self) -> str:
        return str(self._call(lambda: str(self._context.initiator_name)))

    def wrap(self, message: bytes) -> bytes:
        return bytes(self._call(self._context.wrap, message, False).message)

    def unwrap(self, message: bytes) -> bytes:
        return bytes(self._call(self._context.unwrap, message).message)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (self._gssapi.exceptions.GSSError, UnicodeDecodeError) as error:
            raise KerberosError(told(error)) from error


def told(error: Any) -> str:
    """The reason that the library gives, in one line."""
    return " ".join(str(error).split())
