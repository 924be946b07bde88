"""AlterClientQuotas and DescribeClientQuotas: entities, values and filters."""

from collections.abc import Callable
from typing import Any

from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from barnabas.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from compat_tests.differential.run import Run

EXACT, DEFAULT, ANY = 0, 1, 2
Parts = tuple[tuple[str, str | None], ...]

ENTITIES: tuple[Parts, ...] = (
    (("user", "quotas-u"),),
    (("user", "quotas-u"), ("client-id", "quotas c")),
    (("client-id", "quotas/c"),),
    (("ip", "192.0.2.1"),),
)
INVALID_ENTITIES: tuple[Parts, ...] = (
    (),
    (("topic", "t"),),
    (("user", ""),),
    (("client-id", ""),),
    (("ip", "not an address"),),
    (("ip", "192.0.2.1"), ("user", "quotas-u")),
)
VALUES: tuple[tuple[str, float], ...] = (
    ("producer_byte_rate", 1024.0),
    ("producer_byte_rate", 0.5),
    ("producer_byte_rate", 0.0),
    ("producer_byte_rate", -1.0),
    ("producer_byte_rate", 1e19),
    ("consumer_byte_rate", 2.0**40),
    ("request_percentage", 12.5),
    ("controller_mutation_rate", 0.1),
    ("connection_creation_rate", 50.0),
    ("unknown_rate", 1.0),
)


def entry(parts: Parts, *ops: OpData) -> RequestEntryData:
    entity = [RequestEntityData(entity_type=entity_type, entity_name=name) for entity_type, name in parts]
    return RequestEntryData(entity=entity, ops=list(ops))


def filtered(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    asked = [ComponentData(entity_type=each[0], match_type=each[1], match=each[2]) for each in components]
    return DescribeClientQuotasRequest(components=asked, strict=strict)


def alter(run: Run, *entries: RequestEntryData, validate_only: bool = False) -> Any:
    return run.sweep(AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only))


def quotas_set_and_removed(run: Run) -> None:
    for parts in (*ENTITIES, *INVALID_ENTITIES):
        for key, value in VALUES:
            for validate_only in (True, False):
                alter(run, entry(parts, OpData(key=key, value=value)), validate_only=validate_only)
    for parts in ENTITIES:
        run.sweep(filtered(*((entity_type, EXACT, name) for entity_type, name in parts), strict=True))
    for parts in ENTITIES:
        alter(run, entry(parts, *(OpData(key=key, remove=True) for key in {key for key, _ in VALUES})))


def quotas_found(run: Run) -> None:
    for match_type, name in ((EXACT, "quotas-u"), (EXACT, "missing"), (DEFAULT, None)):
        for entity_type in ("user", "client-id"):
            for strict in (False, True):
                run.sweep(filtered((entity_type, match_type, name), strict=strict))
    run.sweep(filtered(("ip", EXACT, "192.0.2.2")))
    run.sweep(filtered(("topic", ANY, None)))
    run.sweep(filtered(("", ANY, None)))
    run.sweep(filtered(("user", EXACT, "a"), ("user", EXACT, "b")))
    run.sweep(filtered(("user", ANY, None), ("ip", ANY, None)))


SCENARIOS: tuple[Callable[[Run], None], ...] = (quotas_set_and_removed, quotas_found)
