"""What AlterClientQuotas may change, and what DescribeClientQuotas finds."""

import pytest

from barnabas.broker.quotas.alterations import QuotaChange, config_entity, merged, new_values
from barnabas.broker.quotas.filters import ANY, EXACT, OF_DEFAULT, Component, QuotaFilter, found
from barnabas.wire.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([("user", "alice")], ("users", "alice")),
        ([("user", None)], ("users", "<default>")),
        ([("user", "<default>")], ("users", "%3Cdefault%3E")),
        ([("client-id", "app"), ("user", "a/b")], ("users", "a%2Fb/clients/app")),
        ([("user", None), ("client-id", None)], ("users", "<default>/clients/<default>")),
        ([("client-id", "a b")], ("clients", "a%20b")),
        ([("ip", None)], ("ips", "<default>")),
        ([("ip", "10.0.0.1")], ("ips", "10.0.0.1")),
        ([("ip", "::1")], ("ips", "%3A%3A1")),
    ],
)
def test_an_entity_is_a_znode(parts: list[tuple[str, str | None]], expected: tuple[str, str]) -> None:
    assert config_entity(parts) == expected


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("topic", "t")],
        [("", "t")],
        [("user", "")],
        [("client-id", "")],
        [("ip", "")],
        [("ip", "host.example")],
        [("ip", "10.0.0.1"), ("user", "alice")],
        [("user", "alice"), ("user", "bob")],
    ],
)
def test_invalid_entities(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(ApiError) as refused:
        config_entity(parts)
    assert refused.value.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity_type", "key", "value", "text"),
    [
        ("users", "producer_byte_rate", 1024.0, "1024"),
        ("clients", "consumer_byte_rate", 2.0**63, "9223372036854775807"),
        ("users", "request_percentage", 12.5, "12.5"),
        ("users", "controller_mutation_rate", 0.1, "0.1"),
        ("ips", "connection_creation_rate", 6.9999999, "7"),
    ],
)
def test_values_are_texts(entity_type: str, key: str, value: float, text: str) -> None:
    assert new_values(entity_type, [QuotaChange(key, value)]) == {key: text}


@pytest.mark.parametrize(
    ("entity_type", "key", "value"),
    [
        ("users", "producer_byte_rate", 0.5),
        ("users", "producer_byte_rate", 0.0),
        ("users", "producer_byte_rate", -1.0),
        ("users", "producer_byte_rate", float("nan")),
        ("users", "request_percentage", float("inf")),
        ("users", "producer_byte_rate", 1e19),
        ("users", "SCRAM-SHA-256", 1.0),
        ("users", "connection_creation_rate", 1.0),
        ("ips", "producer_byte_rate", 1.0),
        ("ips", "connection_creation_rate", 2.0**31),
    ],
)
def test_invalid_values(entity_type: str, key: str, value: float) -> None:
    with pytest.raises(ApiError) as refused:
        new_values(entity_type, [QuotaChange(key, value)])
    assert refused.value.error is ErrorCode.INVALID_REQUEST
    assert key in refused.value.message


def test_a_quota_that_is_given_twice() -> None:
    with pytest.raises(ApiError, match="twice"):
        new_values("users", [QuotaChange("producer_byte_rate", 1.0), QuotaChange("producer_byte_rate", None)])


def test_a_removal_touches_no_credentials() -> None:
    """A user's credentials are beside the quotas, and no quotas."""
    values = new_values("users", [QuotaChange("SCRAM-SHA-256", None), QuotaChange("producer_byte_rate", None)])
    current = {"SCRAM-SHA-256": "secret", "producer_byte_rate": "1", "consumer_byte_rate": "2"}
    assert merged(current, values) == {"SCRAM-SHA-256": "secret", "consumer_byte_rate": "2"}


ENTITIES = [
    ("users", "alice", {"producer_byte_rate": "1"}),
    ("users", "<default>", {"producer_byte_rate": "2"}),
    ("users", "alice/clients/app", {"producer_byte_rate": "3"}),
    ("users", "alice/clients/<default>", {"producer_byte_rate": "4"}),
    ("users", "<default>/clients/app", {"producer_byte_rate": "5"}),
    ("clients", "app", {"producer_byte_rate": "6"}),
    ("clients", "<default>", {"producer_byte_rate": "7", "consumer_byte_rate": "x"}),
    ("ips", "10.0.0.1", {"connection_creation_rate": "8"}),
    ("ips", "<default>", {"connection_creation_rate": "9"}),
    ("users", "bob", {"SCRAM-SHA-256": "secret"}),
]

Filter = list[tuple[str, int, str | None]]


@pytest.mark.parametrize(
    ("components", "is_strict", "expected"),
    [
        ([], False, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
        ([], True, set()),
        ([("user", EXACT, "alice")], False, {1, 3, 4}),
        ([("user", EXACT, "alice")], True, {1}),
        ([("user", OF_DEFAULT, None)], False, {2, 5}),
        ([("user", OF_DEFAULT, None)], True, {2}),
        ([("user", ANY, None)], True, {1, 2}),
        ([("user", ANY, None), ("client-id", ANY, None)], True, {3, 4, 5}),
        ([("client-id", EXACT, "app")], False, {3, 5, 6}),
        ([("client-id", EXACT, "app")], True, {6}),
        ([("user", EXACT, "alice"), ("client-id", OF_DEFAULT, None)], False, {4}),
        ([("user", EXACT, "nobody")], False, set()),
        ([("ip", ANY, None)], True, {8, 9}),
        ([("ip", OF_DEFAULT, None)], False, {9}),
        ([("ip", EXACT, "10.0.0.1")], False, {8}),
    ],
)
def test_a_filter_finds_entities(components: Filter, is_strict: bool, expected: set[int]) -> None:
    quota_filter = QuotaFilter([Component(*each) for each in components], is_strict=is_strict)
    assert {value for _, quotas in found(quota_filter, ENTITIES) for value in quotas.values()} == expected


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("topic", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_invalid_filters(components: Filter, error: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        QuotaFilter([Component(*each) for each in components], is_strict=False)
    assert refused.value.error is error
