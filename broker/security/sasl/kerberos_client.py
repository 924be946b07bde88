"""SASL's mechanism GSSAPI on the side of a broker that logs in to others.   RFC 4752.

The principal and the key table are those with which the broker accepts clients (`kerberos.py`); the library gets
tickets with them, and newer ones before they expire, so that there is nothing to renew (Kafka runs
`sasl.kerberos.kinit.cmd`). The other broker is SERVICE/HOST, with the host of its address. Each step of a login blocks:
it may ask the key distribution center.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from barnabas.broker.security.sasl.kerberos import MECHANISM, NO_LAYER, KerberosError, SystemContext, told
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed

_CHOICE: Final = bytes((NO_LAYER, 0, 0, 0))
"""No layer, the maximum size 0, and no authorization id: the other broker takes the name of the ticket."""


class InitiatedContext(Protocol):
    """A security context on the initiating side. Its methods block, and raise KerberosError."""

    def step(self, token: bytes | None) -> bytes:
        """Take the other broker's token, at first None; returns the next one, which may be empty."""
        ...

    def is_established(self) -> bool:
        """Whether the context needs no more tokens."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """A message with the signature of the context."""
        ...

    def unwrap(self, message: bytes) -> bytes:
        """The content of such a message."""
        ...


class ClientLibrary(Protocol):
    """The library of Kerberos, for one principal that logs in. Its methods block."""

    def initiate(self, service: str, host: str) -> InitiatedContext:
        """A new context for a service on a host. Raises KerberosError."""
        ...


class Client:
    """The principal of a broker; `service` is `sasl.kerberos.service.name`, that of all brokers."""

    name = MECHANISM

    def __init__(self, library: ClientLibrary, service: str) -> None:
        self._library = library
        self._service = service

    def start(self, host: str = "") -> _Exchange:
        return _Exchange(self._library, self._service, host)


class _Exchange:
    """A login."""

    def __init__(self, library: ClientLibrary, service: str, host: str) -> None:
        self._library = library
        self._service = service
        self._host = host
        self._context: InitiatedContext
        self._has_chosen = False

    def first(self) -> bytes:
        try:
            self._context = self._library.initiate(self._service, self._host)
            return self._context.step(None)
        except KerberosError as error:
            raise AuthenticationFailed(reason=f"Kerberos, {self._service}@{self._host}: {error}") from error

    def answer(self, challenge: bytes) -> bytes | None:
        if self._has_chosen:
            return None
        try:
            if not self._context.is_established():
                return self._context.step(challenge)
            offer = self._context.unwrap(challenge)
            if len(offer) < len(_CHOICE) or not offer[0] & NO_LAYER:
                raise AuthenticationFailed(reason="the other broker wants a security layer; none is used here")
            self._has_chosen = True
            return self._context.wrap(_CHOICE)
        except KerberosError as error:
            raise AuthenticationFailed(reason=f"Kerberos, {self._service}@{self._host}: {error}") from error


class SystemClientLibrary:
    """The library of the system, for a principal whose keys are in a key table. Its tickets are kept in the memory of
    this process."""

    def __init__(self, package: Any, principal: str, key_table: str) -> None:
        self._gssapi = package
        self._principal = principal
        self._key_table = key_table

    def initiate(self, service: str, host: str) -> InitiatedContext:
        gssapi = self._gssapi
        try:
            credentials = gssapi.Credentials(
                name=gssapi.Name(self._principal, gssapi.NameType.kerberos_principal),
                usage="initiate",
                mechs=[gssapi.MechType.kerberos],
                store={"client_keytab": f"FILE:{self._key_table}", "ccache": f"MEMORY:barnabas {self._principal}"},
            )
            context = gssapi.SecurityContext(
                name=gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service),
                creds=credentials,
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
            )
        except gssapi.exceptions.GSSError as error:
            raise KerberosError(f"{self._principal} in {self._key_table}: {told(error)}") from error
        return SystemContext(gssapi, context)
