"""Faults of security: logins that fail or end, certificates that clients refuse, permissions and quotas.

Permissions and quotas change by the broker's own functions, as an administrator changes them; the certificates are
issued by the authority of the broker. So what clients see is what they see of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.testing.contents.topic import Topic, topic_name
from barnabas.testing.faults.effects import FailLogin
from barnabas.testing.faults.error_codes import error_code
from barnabas.testing.faults.error_responses import Failure
from barnabas.testing.faults.fault import Fault, Refusal, Registry, StateFault, no_effect
from barnabas.testing.faults.state_faults import StateFaults
from barnabas.testing.interception.selection import Limits, Matcher
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.security.acls.bindings import AclBinding
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.faults.fault_list import Certificates
    from barnabas.testing.interception.request import Request

LOGIN_APIS: Final = frozenset({"SaslHandshake", "SaslAuthenticate"})


class LoginFault(Fault):
    """A fault of logins by SASL. Its hits are the failed ones, which its effect counts."""

    def _is_hit(self, request: Request) -> bool:
        return not self._limits.is_over and request.api in LOGIN_APIS

    @property
    def asked(self) -> int:
        return self.matches

    def _hinders_brokers(self) -> bool:
        return False


class WrongCertificate(Refusal):
    """A certificate that clients refuse, until `remove()`. Its hits are the connections that are accepted meanwhile."""

    def __init__(self, among: Registry, name: str, certificates: Certificates, put: Callable[[], None]) -> None:
        super().__init__(among, name, Matcher(None, {}), Limits(), no_effect)
        self._certificates = certificates
        self._put = put

    @property
    def asked(self) -> int:
        return self.hits

    def _for(self) -> list[str]:
        return []  # its name says everything

    def _refuses(self, broker: int) -> bool:
        self._counts()
        return False

    def _begun(self) -> None:
        self._put()

    def _ended(self) -> None:
        others = [fault for fault in self._registry if isinstance(fault, WrongCertificate)]
        if others:
            others[-1]._put()
        else:
            self._certificates.put_own()


class SecurityFaults(StateFaults):
    """The faults of security; part of `Faults`.

    Errors of all: ApiError with Kafka's error if the broker refuses the change; RuntimeError when no broker runs, and
    for a broker to which the fault cannot apply: those of certificates need `Broker(security=...)`.
    """

    # --- logins -----------------------------------------------------------------------------------

    def fail_authentication(
        self,
        error: ErrorCode | str | int = ErrorCode.SASL_AUTHENTICATION_FAILED,
        message: str | None = None,
        *,
        user: str | None = None,
        mechanism: str | None = None,
        times: int | None = None,
        after: int = 0,
        every: int = 1,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> Fault:
        """Refuse logins whose credentials are right, those of `user` or by `mechanism` if given, with this error; the
        connection is closed afterwards, as Kafka closes it. A re-authentication (KIP-368) is a login, too; present
        sessions go on. UNSUPPORTED_SASL_MECHANISM is the response to the handshake, at which no user is known.

        Errors: ValueError for that error with a user, and for a mechanism that does not exist.
        """
        from barnabas.broker.client.security import MECHANISMS

        code = error_code(error)
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM and user is not None:
            raise ValueError("UNSUPPORTED_SASL_MECHANISM comes before the user is known: leave user out")
        if mechanism is not None and mechanism not in MECHANISMS:
            raise ValueError(f"mechanism={mechanism!r}: expected one of {', '.join(MECHANISMS)}")
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        told = [f"{name}={value!r}" for name, value in (("user", user), ("mechanism", mechanism)) if value is not None]
        what = " ".join(["fail authentication", ErrorCode.of(code).name, *told])

        def effect(fault: Fault) -> FailLogin:
            return FailLogin(Failure(code, message), user, mechanism, fault._counts)

        return self._add(LoginFault(self, what, Matcher(None, {}), limits, effect))

    def expire_authentication(self, user: str | None = None) -> int:
        """End the sessions of SASL of a user, or of all users, as when the client's token expires: a client that does
        not authenticate again loses its connection with its next request, and may log in on another one. Returns the
        number of sessions.
        """

        async def expire() -> int:
            return sum(_expire(server, user) for server in self._owner.live_servers())

        return self._call(expire())

    # --- certificates -----------------------------------------------------------------------------

    def certificate_expired(self) -> WrongCertificate:
        """Present a certificate that has expired a day ago, to new connections, until the fault is removed. Clients
        compare it with the time of their machine, which the broker's clock does not move.
        """
        certificates = self._owner._certificates()
        return self._add(WrongCertificate(self, "certificate_expired", certificates, certificates.put_expired))

    def certificate_of_other_host(self, host: str = "other.example") -> WrongCertificate:
        """Present a certificate that names this host, and none at which the broker listens, to new connections, until
        the fault is removed.
        """
        certificates = self._owner._certificates()
        put = partial(certificates.put_for_host, host)
        return self._add(WrongCertificate(self, f"certificate_of_other_host {host}", certificates, put))

    # --- permissions and quotas -------------------------------------------------------------------

    def deny(
        self,
        user: str,
        operation: str = "ALL",
        *,
        topic: str | Topic | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
    ) -> StateFault:
        """Deny a user an operation by Kafka's name ("READ", "Describe"), on a topic, a group or a transactional id,
        until the fault is removed: by an ACL, which counts before those that allow. Requests that the broker handles
        already are not affected. Super users, as "admin", may do everything all the same. Its hits are the user's
        requests about that resource.

        Errors: ValueError unless one resource is named, and for an unknown operation; ApiError SECURITY_DISABLED
        without an authorizer.
        """
        where = {"topic": topic, "group": group, "transactional_id": transactional_id}
        given = {name: value for name, value in where.items() if value is not None}
        if len(given) != 1:
            raise ValueError("deny is for one resource: pass topic=..., group=... or transactional_id=...")
        [(kind, resource)] = given.items()
        name = topic_name(resource) if kind == "topic" else str(resource)
        acl = _denial(f"User:{user}", operation, kind, name)
        self._call(self._add_acl(acl))

        def undo() -> None:
            self._call(self._remove_acl(acl))

        matcher = Matcher(None, {kind: name, "principal": f"User:{user}"})
        what = f"deny {user} {acl.entry.operation.name} on {kind} {name}"
        return self._add(StateFault(self, what, matcher, undo))

    def quota(
        self,
        user: str | None = None,
        client_id: str | None = None,
        *,
        producer_byte_rate: int | None = None,
        consumer_byte_rate: int | None = None,
        request_percentage: float | None = None,
        controller_mutation_rate: float | None = None,
    ) -> StateFault:
        """Give a user, a client id, or both together a quota, until the fault is removed: bytes a second that it may
        produce and fetch, the share of time of its requests (100 is one processor), creations and deletions a second.
        The broker throttles a client beyond it (KIP-13). Its hits are the client's requests meanwhile.

        Errors: ValueError unless a user or a client id, and a quota, are given; ApiError INVALID_REQUEST for a quota
        that is not above 0.
        """
        entity = {"user": user, "client-id": client_id}
        parts = [(kind, name) for kind, name in entity.items() if name is not None]
        values = {
            "producer_byte_rate": producer_byte_rate,
            "consumer_byte_rate": consumer_byte_rate,
            "request_percentage": request_percentage,
            "controller_mutation_rate": controller_mutation_rate,
        }
        quotas = {key: float(value) for key, value in values.items() if value is not None}
        if not parts or not quotas:
            raise ValueError("quota is for user=..., client_id=... or both, and needs one, such as producer_byte_rate")
        former = self._call(self._set_quotas(parts, quotas))

        def undo() -> None:
            self._call(self._set_quotas(parts, former))

        selection = {"principal": None if user is None else f"User:{user}", "client_id": client_id}
        matcher = Matcher(None, {key: value for key, value in selection.items() if value is not None})
        told = ", ".join(f"{key}={value:g}" for key, value in quotas.items())
        of = " ".join(f"{kind} {name}" for kind, name in parts)
        return self._add(StateFault(self, f"quota of {of}: {told}", matcher, undo))

    # --- inside -----------------------------------------------------------------------------------

    async def _add_acl(self, acl: AclBinding) -> None:
        """Add an ACL; every running broker obeys it on return. Raises: ApiError."""
        server = self._any_server()
        if server.services.acls is None:
            raise ApiError(ErrorCode.SECURITY_DISABLED, "the broker has no authorizer (authorizer.class.name)")
        [error] = await server.services.acls.create([acl])
        if error is not None:
            raise error
        await self._owner._eventually(partial(self._are_known, acl, is_there=True), "a broker has not heard of an ACL")

    async def _remove_acl(self, acl: AclBinding) -> None:
        """Remove an ACL; every running broker obeys that on return. Raises: ApiError."""
        from barnabas.broker.security.acls.bindings import AclBindingFilter, ResourcePatternFilter

        pattern, entry = acl
        wanted = AclBindingFilter(ResourcePatternFilter(*pattern), *entry)
        server = self._any_server()
        if server.services.acls is not None:
            for deletion in (await server.services.acls.delete([wanted]))[0]:
                if deletion.error is not None:
                    raise deletion.error
        await self._owner._eventually(partial(self._are_known, acl, is_there=False), "a broker has not heard of an ACL")

    def _are_known(self, acl: AclBinding, *, is_there: bool) -> bool | None:
        """Whether every running broker knows that an ACL is there, or is not; None if one does not."""
        administrations = [server.services.acls for server in self._owner.live_servers()]
        known = [
            (acl.entry in each.authorizer.index.entries.get(acl.pattern, ())) == is_there
            for each in administrations
            if each is not None
        ]
        return all(known) or None

    async def _set_quotas(
        self, parts: Sequence[tuple[str, str]], quotas: Mapping[str, float | None]
    ) -> dict[str, float | None]:
        """Set quotas of an entity, or remove those of None; returns the former ones. Raises: ApiError."""
        from barnabas.broker.quotas.alterations import QuotaChange, config_entity, merged, new_values

        entity = config_entity(parts)
        values = new_values(entity.entity_type, [QuotaChange(key, value) for key, value in quotas.items()])
        configs = self._any_server().services.configs
        found = configs.overrides(*entity)
        former = {key: float(found[key]) if key in found else None for key in quotas}
        await configs.change(*entity, lambda current: merged(current, values))
        return former


def _denial(principal: str, operation: str, kind: str, name: str) -> AclBinding:
    """The ACL that denies an operation on a resource of this kind. Errors: ValueError for an unknown operation."""
    from barnabas.broker.security.acls.bindings import (
        WILDCARD,
        AccessControlEntry,
        AclBinding,
        PatternType,
        PermissionType,
        ResourcePattern,
    )
    from barnabas.broker.security.operations import Operation, ResourceType

    named = {each.name.replace("_", ""): each for each in Operation if each is not Operation.UNKNOWN}
    found = named.get(operation.upper().replace("_", ""))
    if found is None:
        known = ", ".join(each.name for each in named.values())
        raise ValueError(f"Kafka has no operation {operation!r:.100}: there are {known}")
    pattern = ResourcePattern(ResourceType[kind.upper()], PatternType.LITERAL, name)
    return AclBinding(pattern, AccessControlEntry(principal, WILDCARD, found, PermissionType.DENY))


def _expire(server: Server, user: str | None) -> int:
    """End the sessions of SASL of a broker's clients; returns how many. Broker's loop only."""
    from barnabas.broker.api.authentication import AuthenticatedRequests

    count = 0
    for connection in server.connections:
        login = connection.session.login
        if login is None or login.identity is None or connection.session.is_broker or not login.is_complete:
            continue
        if user is None or login.identity.name == user:
            login.ends_ms = login.served_until_ms = server.clock.monotonic_ms() - 1
            assert server.dispatcher is not None
            connection.serve_by(AuthenticatedRequests(server.dispatcher, server.services.sasl))
            count += 1
    return count
