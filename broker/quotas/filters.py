"""What DescribeClientQuotas asks for: the entities that match a filter, and their quotas. Pure.

A filter has a component for each type of entity that it asks for. An entity matches if it has all these types, with
names that match; a strict filter refuses entities of other types besides.

Source: kafka 3.9.1 ZkAdminManager.describeClientQuotas, ClientQuotaFilter.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.quotas.entities import CLIENT_ID, IP, QUOTAS_OF, USER, bound_of
from barnabas.controller.sanitizer import DEFAULT_NAME, desanitize
from barnabas.wire.errors import ApiError, ErrorCode

EXACT: Final = 0
OF_DEFAULT: Final = 1
ANY: Final = 2
"""How a component matches: the name, the default entity, or any entity of the type (DescribeClientQuotasRequest)."""

Parts = Mapping[str, str | None]
"""An entity: names by type; None is the default."""


class Component(NamedTuple):
    """One type of a filter; `name` counts with EXACT alone."""

    entity_type: str
    match_type: int
    name: str | None

    def matches(self, parts: Parts) -> bool:
        """Whether an entity has this type, with a name that matches."""
        if self.entity_type not in parts:
            return False
        if self.match_type == ANY:
            return True
        return parts[self.entity_type] == (self.name if self.match_type == EXACT else None)


class QuotaFilter:
    """Components, each of another type.

    Raises: ApiError(INVALID_REQUEST) for a type that is empty or comes twice, for an address beside other types, an
    unknown way to match and an exact one without a name; ApiError(UNSUPPORTED_VERSION) for an unknown type.
    """

    def __init__(self, components: Sequence[Component], *, is_strict: bool) -> None:
        self._components = components
        self._is_strict = is_strict
        types = [component.entity_type for component in components]
        for entity_type in types:
            if not entity_type:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The entity type of a filter must not be empty.")
            if entity_type not in (USER, CLIENT_ID, IP):
                message = f"There are no quotas of the entity type '{entity_type}'."
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
        if len(set(types)) < len(types):
            raise ApiError(ErrorCode.INVALID_REQUEST, "The filter has an entity type twice.")
        if IP in types and len(types) > 1:
            message = "A filter asks for quotas of an ip, or for those of a user and client-id."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        for component in components:
            if component.match_type not in (EXACT, OF_DEFAULT, ANY):
                message = f"There is no match type {component.match_type}."
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
            if component.match_type == EXACT and component.name is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, "An exact match needs a name.")

    def matches(self, parts: Parts) -> bool:
        """Whether the filter asks for an entity."""
        if self._is_strict and len(parts) > len(self._components):
            return False
        return all(component.matches(parts) for component in self._components)


def parts_of(entity_type: str, name: str) -> dict[str, str | None]:
    """The entity of a znode below `users`, `clients` or `ips`."""
    if entity_type == "clients":
        return {CLIENT_ID: _name(name)}
    if entity_type == "ips":
        return {IP: _name(name)}
    user, _, client_id = name.partition("/clients/")
    parts = {USER: _name(user)}
    if client_id:
        parts[CLIENT_ID] = _name(client_id)
    return parts


def quotas_of(entity_type: str, overrides: Mapping[str, str]) -> dict[str, float]:
    """The quotas among an entity's configs. Those that are no numbers, which another program must have written, are
    left out."""
    quotas = {}
    for key in QUOTAS_OF[entity_type]:
        try:
            bound = bound_of(overrides, key)
        except ValueError:
            continue
        if bound is not None:
            quotas[key] = bound
    return quotas


def found(
    quota_filter: QuotaFilter, entities: Iterable[tuple[str, str, Mapping[str, str]]]
) -> Iterable[tuple[Parts, Mapping[str, float]]]:
    """The entities that a filter asks for, with their quotas. `entities` are types, names of znodes and configs."""
    for entity_type, name, overrides in entities:
        quotas = quotas_of(entity_type, overrides)
        if quotas:
            parts = parts_of(entity_type, name)
            if quota_filter.matches(parts):
                yield parts, quotas


def _name(sanitized: str) -> str | None:
    return None if sanitized == DEFAULT_NAME else desanitize(sanitized)
