"""The quotas of users and client ids: the usage of each client, and the time for which a client is throttled.

A manager has one type of quota. It keeps a sensor for each client with a quota: the usage in a window of time. A sensor
that was not used for an hour is forgotten, as in Kafka. Clients choose their client ids, so the number of sensors is
limited, too: beyond it the one that was not used for longest is forgotten.

Source: kafka 3.9.1 ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager.
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from barnabas.broker.quotas.entities import ClientKey, QuotaLimits
from barnabas.broker.quotas.rates import QuotaWindow, Rate, TokenBucket
from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode

SENSOR_EXPIRATION_MS: Final = 3_600_000
"""The time after which an unused sensor is forgotten (ClientQuotaManager.InactiveSensorExpirationTimeSeconds)."""

SENSORS_MAX: Final = 10_000
"""The limit of sensors of one type of quota; each takes 2 KiB. Kafka has none."""

PERCENT_OF_A_SECOND: Final = 100.0
"""The work of one second, as a percentage of a processor's time."""


class Usage(Protocol):
    """What a sensor measures with: a rate or a token bucket."""

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """The time until the usage is within `bound`."""
        ...


UsageT = TypeVar("UsageT", bound=Usage)


class Sensor(Generic[UsageT]):
    """The usage of one client, and the bound that applies to it."""

    __slots__ = ("bound", "usage", "used_ms")

    def __init__(self, usage: UsageT) -> None:
        self.usage = usage
        self.bound = 0.0
        self.used_ms = 0


class Sensors(Generic[UsageT]):
    """The sensors of one type of quota, with its bounds; `new_usage` makes the measurement of a new one."""

    def __init__(self, new_usage: Callable[[], UsageT], sensors_max: int = SENSORS_MAX) -> None:
        self.limits = QuotaLimits()
        self._new_usage = new_usage
        self._sensors_max = sensors_max
        self._sensors: dict[ClientKey, Sensor[UsageT]] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sensors)

    def find(self, user: str, client_id: str, now_ms: int) -> Sensor[UsageT] | None:
        """The sensor that a request of a user and a client id counts for; None if no quota applies."""
        limit = self.limits.find(user, client_id)
        if limit is None:
            return None
        key, bound = limit
        self._forget_expired(now_ms)
        sensor = self._sensors.pop(key, None)
        if sensor is None:
            sensor = Sensor(self._new_usage())
            if len(self._sensors) >= self._sensors_max:
                del self._sensors[next(iter(self._sensors))]
        self._sensors[key] = sensor
        sensor.bound = bound
        sensor.used_ms = now_ms
        return sensor

    def _forget_expired(self, now_ms: int) -> None:
        while self._sensors:
            key = next(iter(self._sensors))
            if now_ms - self._sensors[key].used_ms < SENSOR_EXPIRATION_MS:
                return
            del self._sensors[key]


class ThrottleCounter:
    """The throttles of one type of quota, for metrics."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0

    def note(self, throttle_time_ms: int) -> None:
        """Count a throttle that a response has told its client."""
        self.count += 1
        self.total_ms += throttle_time_ms


class ClientQuotaManager:
    """A quota of a rate: bytes per second that clients produce or fetch, or their request time.

    Args:
        window: the samples of a rate.
        clock: the broker's clock.
        throttle_time_ms_max: the limit of one throttle; None without one.
        sensors_max: the limit of clients whose usage is known.
    """

    def __init__(
        self,
        window: QuotaWindow,
        clock: Clock,
        *,
        throttle_time_ms_max: int | None = None,
        sensors_max: int = SENSORS_MAX,
    ) -> None:
        self.sensors = Sensors(lambda: Rate(window), sensors_max)
        self.throttles = ThrottleCounter()
        self._window = window
        self._clock = clock
        self._throttle_time_ms_max = throttle_time_ms_max

    @property
    def limits(self) -> QuotaLimits:
        """The bounds of this type of quota."""
        return self.sensors.limits

    def record(self, user: str, client_id: str, value: float) -> int:
        """Count usage; returns the time in milliseconds for which the client is throttled, 0 within its quota."""
        now_ms = self._clock.monotonic_ms()
        sensor = self.sensors.find(user, client_id, now_ms)
        if sensor is None:
            return 0
        sensor.usage.record(value, now_ms)
        throttle_time_ms = sensor.usage.throttle_time_ms(sensor.bound, now_ms)
        if self._throttle_time_ms_max is not None:
            return min(throttle_time_ms, self._throttle_time_ms_max)
        return throttle_time_ms

    def take_back(self, user: str, client_id: str, value: float) -> None:
        """Take back usage that has just been counted: the response was not sent."""
        now_ms = self._clock.monotonic_ms()
        sensor = self.sensors.find(user, client_id, now_ms)
        if sensor is not None:
            sensor.usage.record(-value, now_ms)

    def most_at_once(self, user: str, client_id: str) -> float:
        """The usage for which a client that had none is not throttled; infinite without a quota."""
        limit = self.limits.find(user, client_id)
        if limit is None:
            return float("inf")
        return limit[1] * (self._window.samples - 1) * self._window.sample_ms / 1000


class MutationQuota:
    """The quota of controller mutations for one request.

    A strict one refuses mutations while the quota is exhausted, and throttles only then. A permissive one, for older
    versions of requests, accepts them all, and throttles as soon as the quota is exhausted.
    """

    def __init__(self, sensor: Sensor[TokenBucket], clock: Clock, *, is_strict: bool) -> None:
        self._sensor = sensor
        self._clock = clock
        self._is_strict = is_strict
        self._throttled_until_ms = 0

    def record(self, partitions: int) -> None:
        """Count partitions that are created or deleted. Raises: ApiError(THROTTLING_QUOTA_EXCEEDED) if the quota is
        strict and exhausted; then they do not count."""
        now_ms = self._clock.monotonic_ms()
        bucket, bound = self._sensor.usage, self._sensor.bound
        if not self._is_strict:
            bucket.take(partitions, bound, now_ms)
        throttle_time_ms = bucket.throttle_time_ms(bound, now_ms)
        if throttle_time_ms:
            self._throttled_until_ms = now_ms + throttle_time_ms
            if self._is_strict:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if self._is_strict:
            bucket.take(partitions, bound, now_ms)

    def refused(self, counts: Mapping[str, int]) -> dict[str, ApiError]:
        """Count the partitions of topics, one topic after the other; returns the errors of those that are refused."""
        errors = {}
        for topic, partitions in counts.items():
            try:
                self.record(partitions)
            except ApiError as error:
                errors[topic] = error
        return errors

    @property
    def throttle_time_ms(self) -> int:
        """The time for which the client is throttled, from now on."""
        return max(0, self._throttled_until_ms - self._clock.monotonic_ms())


class ControllerMutationQuotaManager:
    """The quota of partitions that a client may create and delete per second (KIP-599); the arguments are those of
    `ClientQuotaManager`."""

    def __init__(self, window: QuotaWindow, clock: Clock, *, sensors_max: int = SENSORS_MAX) -> None:
        self.sensors = Sensors(lambda: TokenBucket(window), sensors_max)
        self.throttles = ThrottleCounter()
        self._clock = clock

    @property
    def limits(self) -> QuotaLimits:
        """The bounds of this type of quota."""
        return self.sensors.limits

    def of_request(self, user: str, client_id: str, *, is_strict: bool) -> MutationQuota | None:
        """The quota for one request; None if none applies."""
        sensor = self.sensors.find(user, client_id, self._clock.monotonic_ms())
        return None if sensor is None else MutationQuota(sensor, self._clock, is_strict=is_strict)
