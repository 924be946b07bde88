"""The usage of clients, their throttles, and what is forgotten."""

import pytest

from barnabas.broker.quotas.client_quotas import ClientQuotas
from barnabas.broker.quotas.connection_quotas import ConnectionQuotas
from barnabas.broker.quotas.entities import DEFAULT, QuotaEntity
from barnabas.broker.quotas.managers import (
    SENSOR_EXPIRATION_MS,
    ClientQuotaManager,
    ControllerMutationQuotaManager,
    MutationQuota,
)
from barnabas.broker.quotas.rates import QuotaWindow
from barnabas.clock import ManualClock
from barnabas.wire.errors import ApiError, ErrorCode

WINDOW = QuotaWindow(11, 1_000)


def manager(clock: ManualClock, **options: int) -> ClientQuotaManager:
    made = ClientQuotaManager(WINDOW, clock, **options)
    made.limits.set(QuotaEntity(None, DEFAULT), 1_000)
    return made


def test_usage_beyond_the_quota_is_throttled() -> None:
    clock = ManualClock()
    produce = manager(clock)
    assert produce.record("alice", "app", 10_000) == 0
    assert produce.record("alice", "app", 1_000) == 1_000
    assert produce.record("alice", "other", 10_000) == 0
    clock.advance(999)
    assert produce.record("alice", "app", 0) == 1
    clock.advance(11_000)
    assert produce.record("alice", "app", 10_000) == 0


def test_usage_that_is_taken_back_does_not_count() -> None:
    fetch = manager(ManualClock())
    assert fetch.record("alice", "app", 20_000) == 10_000
    fetch.take_back("alice", "app", 20_000)
    assert fetch.record("alice", "app", 10_000) == 0


def test_a_throttle_may_have_a_limit() -> None:
    assert manager(ManualClock(), throttle_time_ms_max=1_000).record("alice", "app", 20_000) == 1_000


def test_most_at_once_is_not_throttled() -> None:
    fetch = manager(ManualClock())
    most = fetch.most_at_once("alice", "app")
    assert most == 10_000
    assert fetch.record("alice", "app", most) == 0
    assert fetch.record("alice", "app", 1) > 0
    assert fetch.most_at_once("alice", "") == float("inf")


def test_another_bound_holds_at_once() -> None:
    produce = manager(ManualClock())
    assert produce.record("alice", "app", 20_000) == 10_000
    produce.limits.set(QuotaEntity(None, "app"), 2_000)
    assert produce.record("alice", "app", 0) == 0


def test_unused_sensors_are_forgotten() -> None:
    clock = ManualClock()
    produce = manager(clock)
    produce.record("alice", "old", 1)
    clock.advance(SENSOR_EXPIRATION_MS - 1)
    produce.record("alice", "new", 1)
    assert len(produce.sensors) == 2
    clock.advance(1)
    produce.record("alice", "new", 1)
    assert len(produce.sensors) == 1


def test_the_number_of_sensors_is_limited() -> None:
    """The one that was not used for longest makes room."""
    produce = manager(ManualClock(), sensors_max=2)
    produce.record("alice", "a", 20_000)
    produce.record("alice", "b", 20_000)
    produce.record("alice", "a", 0)
    produce.record("alice", "c", 20_000)
    assert len(produce.sensors) == 2
    assert produce.record("alice", "a", 0) == 10_000
    assert produce.record("alice", "b", 0) == 0


def mutations(clock: ManualClock, *, is_strict: bool) -> MutationQuota:
    made = ControllerMutationQuotaManager(WINDOW, clock)
    made.limits.set(QuotaEntity("alice"), 1)
    assert made.of_request("bob", "app", is_strict=is_strict) is None
    quota = made.of_request("alice", "app", is_strict=is_strict)
    assert quota is not None
    return quota


def test_a_strict_quota_refuses_mutations_once_it_is_exhausted() -> None:
    """Any number is accepted before; and what was refused does not count."""
    clock = ManualClock()
    quota = mutations(clock, is_strict=True)
    quota.record(12)
    assert quota.throttle_time_ms == 0
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            quota.record(100)
        assert refused.value.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert quota.throttle_time_ms == 1_000
    clock.advance(400)
    assert quota.throttle_time_ms == 600
    clock.advance(600)
    quota.record(1)


def test_a_permissive_quota_accepts_all_mutations_and_throttles() -> None:
    quota = mutations(ManualClock(), is_strict=False)
    quota.record(12)
    assert quota.throttle_time_ms == 1_000
    quota.record(5)
    assert quota.throttle_time_ms == 6_000


def test_connections_beyond_an_addresses_rate() -> None:
    """They are not counted, and wait one sample at most; other addresses are not affected."""
    clock = ManualClock()
    quotas = ConnectionQuotas(WINDOW, clock)
    assert quotas.record("10.0.0.1") == 0
    quotas.set(DEFAULT, 1)
    quotas.set("10.0.0.9", 100)
    assert [quotas.record("10.0.0.1") for _ in range(10)] == [0] * 10
    assert [quotas.record("::ffff:10.0.0.1") for _ in range(3)] == [1_000] * 3
    assert [quotas.record("10.0.0.9") for _ in range(50)] == [0] * 50
    assert (quotas.throttles.count, quotas.throttles.total_ms) == (3, 3_000)
    clock.advance(11_000)
    assert quotas.record("10.0.0.1") == 0
    quotas.set(DEFAULT, None)
    assert [quotas.record("10.0.0.1") for _ in range(50)] == [0] * 50


def test_the_number_of_addresses_is_limited() -> None:
    clock = ManualClock()
    quotas = ConnectionQuotas(WINDOW, clock, addresses_max=2)
    quotas.set(DEFAULT, 1)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        quotas.record(host)
    assert len(quotas._rates) == 2
    clock.advance(SENSOR_EXPIRATION_MS)
    quotas.record("10.0.0.4")
    assert len(quotas._rates) == 1


def test_configs_set_and_remove_quotas() -> None:
    """Names are those of znodes; what is no number or no address is logged, and changes nothing."""
    clock = ManualClock()
    quotas = ClientQuotas(WINDOW, WINDOW, clock, clock)
    quotas.change("users", "CN%3Da/clients/<default>", {"producer_byte_rate": "1000", "SCRAM-SHA-256": "secret"})
    quotas.change("clients", "app", {"request_percentage": "0.5"})
    quotas.change("ips", "<default>", {"connection_creation_rate": "1"})
    quotas.change("ips", "host.example", {"connection_creation_rate": "0"})
    assert quotas.produce.record("CN=a", "app", 10_001) == 1
    assert quotas.request.record("bob", "app", 100) == 1_000
    assert quotas.connections.record("10.0.0.1") == 0
    quotas.change("users", "CN%3Da/clients/<default>", {"producer_byte_rate": "?"})
    assert quotas.produce.record("CN=a", "app", 0) == 1
    quotas.change("users", "CN%3Da/clients/<default>", {})
    assert quotas.produce.record("CN=a", "app", 0) == 0
