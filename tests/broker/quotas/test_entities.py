"""Which quota of several applies to a client, and to which clients together."""

import itertools

import pytest

from barnabas.broker.quotas.entities import (
    DEFAULT,
    ClientKey,
    QuotaEntity,
    QuotaLimits,
    bound_of,
    normal_address,
)
from barnabas.controller.sanitizer import DEFAULT_NAME, desanitize, sanitize

IN_ORDER = [
    (QuotaEntity("alice", "app"), ClientKey("alice", "app")),
    (QuotaEntity("alice", DEFAULT), ClientKey("alice", "app")),
    (QuotaEntity("alice"), ClientKey("alice", "")),
    (QuotaEntity(DEFAULT, "app"), ClientKey("alice", "app")),
    (QuotaEntity(DEFAULT, DEFAULT), ClientKey("alice", "app")),
    (QuotaEntity(DEFAULT), ClientKey("alice", "")),
    (QuotaEntity(None, "app"), ClientKey("", "app")),
    (QuotaEntity(None, DEFAULT), ClientKey("", "app")),
]
"""Kafka's order of entities, and the client whose usage counts together."""


@pytest.mark.parametrize("present", [set(them) for n in (1, 2, 8) for them in itertools.combinations(range(8), n)])
def test_the_most_specific_quota_applies(present: set[int]) -> None:
    limits = QuotaLimits()
    for index in present:
        limits.set(IN_ORDER[index][0], float(index + 1))
    first = min(present)
    assert limits.find("alice", "app") == (IN_ORDER[first][1], first + 1)


def test_a_quota_of_others_does_not_apply() -> None:
    limits = QuotaLimits()
    limits.set(QuotaEntity("bob"), 1)
    limits.set(QuotaEntity("alice", "other"), 2)
    limits.set(QuotaEntity(None, "other"), 3)
    assert limits.find("alice", "app") is None


def test_a_removed_quota_does_not_apply() -> None:
    limits = QuotaLimits()
    limits.set(QuotaEntity("alice"), 1)
    limits.set(QuotaEntity("alice"), None)
    limits.set(QuotaEntity("bob"), None)
    assert limits.find("alice", "app") is None


def test_no_quota_of_client_ids_applies_to_a_client_without_one() -> None:
    limits = QuotaLimits()
    for entity in (QuotaEntity("alice", DEFAULT), QuotaEntity(None, DEFAULT)):
        limits.set(entity, 1)
    assert limits.find("alice", "") is None
    limits.set(QuotaEntity(DEFAULT), 2)
    assert limits.find("alice", "") == (ClientKey("alice", ""), 2)


def test_a_user_of_the_defaults_name_is_no_default() -> None:
    limits = QuotaLimits()
    limits.set(QuotaEntity(DEFAULT_NAME), 1)
    assert limits.find("alice", "app") is None
    assert limits.find(DEFAULT_NAME, "app") == (ClientKey(DEFAULT_NAME, ""), 1)


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("alice", "alice"),
        ("CN=a b,O=x*y", "CN%3Da%20b%2CO%3Dx%2Ay"),
        ("a+b~c/ü", "a%2Bb~c%2F%C3%BC".replace("~", "%7E")),
        (DEFAULT_NAME, "%3Cdefault%3E"),
        ("a.b-c_d", "a.b-c_d"),
    ],
)
def test_names_are_sanitized_as_by_kafka(name: str, sanitized: str) -> None:
    assert sanitize(name) == sanitized
    assert desanitize(sanitized) == name


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("0:0::1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("localhost", None),
        ("", None),
    ],
)
def test_addresses_have_one_form(host: str, normal: str | None) -> None:
    assert normal_address(host) == normal


def test_bounds_are_numbers() -> None:
    assert bound_of({"a": "1.5"}, "a") == 1.5
    assert bound_of({"a": "1.5"}, "b") is None
    for text in ("x", "nan", ""):
        with pytest.raises(ValueError, match=r"number|float"):
            bound_of({"a": text}, "a")
