"""What a request counts for the quotas of its client."""

from barnabas.broker.quotas.client_quotas import ClientQuotas
from barnabas.broker.quotas.entities import DEFAULT, QuotaEntity
from barnabas.broker.quotas.meter import CLIENT_ID_LENGTH_MAX, Meter
from barnabas.broker.quotas.rates import QuotaWindow
from barnabas.clock import ManualClock

WINDOW = QuotaWindow(11, 1_000)


class Bench:
    """Quotas, and a measure of work that a test moves."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.quotas = ClientQuotas(WINDOW, WINDOW, clock, clock)
        self.now_s = 0.0

    def meter(self, client_id: str | None = "app", request_bytes: int = 0) -> Meter:
        return Meter(self.quotas, "User:alice", client_id, request_bytes, lambda: self.now_s)

    def work(self, meter: Meter, duration_s: float) -> None:
        meter.begin()
        self.now_s += duration_s
        meter.end()


def test_steps_count_and_waits_do_not() -> None:
    bench = Bench()
    bench.quotas.request.limits.set(QuotaEntity("alice"), 10)
    meter = bench.meter()
    for _ in range(2):
        bench.work(meter, 0.5)
        bench.now_s += 60
    meter.count()
    assert meter.throttle_time_ms == 0
    bench.work(again := bench.meter(), 0.001)
    again.count()
    assert again.throttle_time_ms == 10


def test_the_step_in_progress_counts_for_a_fetch() -> None:
    """It is judged before its response is made, and only once."""
    bench = Bench()
    bench.quotas.request.limits.set(QuotaEntity("alice"), 1)
    meter = bench.meter()
    meter.begin()
    bench.now_s += 1
    assert meter.holds_back(100)
    assert meter.throttle_time_ms == 1_000
    meter.end()
    bench.now_s += 10
    meter.count()
    meter.note_throttle()
    assert bench.quotas.request.throttles.total_ms == 1_000


def test_a_produce_without_response_has_no_request_time() -> None:
    bench = Bench()
    bench.quotas.request.limits.set(QuotaEntity("alice"), 1)
    meter = bench.meter()
    bench.work(meter, 100)
    meter.count_produced(has_response=False)
    assert meter.throttle_time_ms == 0
    meter.count_produced(has_response=True)
    assert meter.throttle_time_ms == 1_000


def test_the_longest_throttle_counts_for_its_quota() -> None:
    bench = Bench()
    bench.quotas.request.limits.set(QuotaEntity("alice"), 1)
    bench.quotas.produce.limits.set(QuotaEntity("alice"), 1)
    meter = bench.meter(request_bytes=15)
    bench.work(meter, 100)
    meter.count_produced(has_response=True)
    meter.note_throttle()
    assert meter.throttle_time_ms == 5_000
    usages = {usage.quota: (usage.throttle_count, usage.throttle_ms) for usage in bench.quotas.usages()}
    assert usages["produce"] == (1, 5_000)
    assert usages["request"] == (0, 0)


def test_client_ids_that_are_too_long_are_one_client() -> None:
    """They have the default quota, and take no memory."""
    bench = Bench()
    bench.quotas.produce.limits.set(QuotaEntity(None, DEFAULT), 1)
    for number in range(100):
        bench.meter(f"{number:04}" * CLIENT_ID_LENGTH_MAX, 1).count_produced(has_response=True)
    assert len(bench.quotas.produce.sensors) == 1
    bench.meter("x" * CLIENT_ID_LENGTH_MAX, 1).count_produced(has_response=True)
    assert len(bench.quotas.produce.sensors) == 2


def test_a_client_without_an_id() -> None:
    bench = Bench()
    bench.quotas.produce.limits.set(QuotaEntity(None, DEFAULT), 1)
    meter = bench.meter(None, 1_000)
    meter.count_produced(has_response=True)
    assert meter.throttle_time_ms == 0
