"""What one request counts for the quotas of its client, and the throttle that follows.

A client that exceeds several quotas is throttled once, for the longest time. Source: kafka 3.9.1 KafkaApis
(handleProduceRequest, handleFetchRequest), RequestHandlerHelper.
"""

from collections.abc import Callable
from typing import Final

from barnabas.broker.quotas.client_quotas import ClientQuotas
from barnabas.broker.quotas.managers import PERCENT_OF_A_SECOND, MutationQuota, ThrottleCounter

CLIENT_ID_LENGTH_MAX: Final = 1_000
"""Longer client ids have quotas as the default client id has, and count as one client: sensors keep them for an
hour."""

LONG_CLIENT_ID: Final = "\0"
"""Stands for all client ids that are too long; no quota can have this name."""


class Meter:
    """Measures one request, and holds what it may not exceed.

    Args:
        quotas: those of the broker's clients.
        principal: the client's principal, "User:alice".
        client_id: the client id of the request, None without one.
        request_bytes: the size of the request.
        work_s: measures the time in which the broker works.

    `throttle_time_ms` is the longest throttle so far. `mutations` is the quota of controller mutations of a request
    that creates or deletes partitions.
    """

    __slots__ = (
        "_began_s",
        "_client_id",
        "_counter",
        "_is_judged",
        "_quotas",
        "_request_bytes",
        "_spent_s",
        "_user",
        "_work_s",
        "mutations",
        "throttle_time_ms",
    )

    def __init__(
        self,
        quotas: ClientQuotas,
        principal: str,
        client_id: str | None,
        request_bytes: int,
        work_s: Callable[[], float],
    ) -> None:
        self._quotas = quotas
        self._user = principal.partition(":")[2]
        self._client_id = client_id or ""
        if len(self._client_id) > CLIENT_ID_LENGTH_MAX:
            self._client_id = LONG_CLIENT_ID
        self._request_bytes = request_bytes
        self._work_s = work_s
        self._spent_s = 0.0
        self._began_s: float | None = None
        self._is_judged = False
        self._counter: ThrottleCounter | None = None
        self.throttle_time_ms = 0
        self.mutations: MutationQuota | None = None

    # --- the time of the request ------------------------------------------------------------------

    def begin(self) -> None:
        """The broker begins a step of the request."""
        self._began_s = self._work_s()

    def end(self) -> None:
        """The step is over; the request may wait for another."""
        self._spent_s = self._spent()
        self._began_s = None

    def _spent(self) -> float:
        return self._spent_s if self._began_s is None else self._spent_s + self._work_s() - self._began_s

    # --- quotas -----------------------------------------------------------------------------------

    def most_to_fetch(self, max_bytes: int) -> int:
        """The bytes that a Fetch may return at most: more than fit into the window would never be within the quota."""
        return int(min(max_bytes, self._quotas.fetch.most_at_once(self._user, self._client_id)))

    def holds_back(self, response_bytes: int) -> bool:
        """Whether the client of a Fetch is throttled. If so, its response has to be empty, and its bytes do not
        count."""
        self._is_judged = True
        fetch = self._quotas.fetch
        self._judge(fetch.record(self._user, self._client_id, response_bytes), fetch.throttles)
        self._judge_time()
        if not self.throttle_time_ms:
            return False
        fetch.take_back(self._user, self._client_id, response_bytes)
        return True

    def count_produced(self, *, has_response: bool) -> None:
        """A Produce request is done; one without a response does not count for the request time, as in Kafka."""
        produce = self._quotas.produce
        self._judge(produce.record(self._user, self._client_id, self._request_bytes), produce.throttles)
        if has_response:
            self._judge_time()

    def limit_mutations(self, *, is_strict: bool) -> MutationQuota | None:
        """The quota of partitions that this request creates or deletes; None if none applies."""
        manager = self._quotas.controller_mutation
        self.mutations = manager.of_request(self._user, self._client_id, is_strict=is_strict)
        return self.mutations

    def count(self) -> None:
        """A request of any other API is done. A Fetch has been judged already, or comes from a follower."""
        if self._is_judged:
            return
        if self.mutations is not None:
            self._judge(self.mutations.throttle_time_ms, self._quotas.controller_mutation.throttles)
        self._judge_time()

    def note_throttle(self) -> None:
        """The client is throttled: count that for the quota with the longest time."""
        if self._counter is not None:
            self._counter.note(self.throttle_time_ms)

    def _judge_time(self) -> None:
        request = self._quotas.request
        percent = self._spent() * PERCENT_OF_A_SECOND
        self._judge(request.record(self._user, self._client_id, percent), request.throttles)

    def _judge(self, throttle_time_ms: int, counter: ThrottleCounter) -> None:
        if throttle_time_ms and throttle_time_ms >= self.throttle_time_ms:
            self.throttle_time_ms, self._counter = throttle_time_ms, counter
