"""Recording of the requests of clients to a broker, or a cluster: `with broker.recorded() as seen:`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from barnabas.testing.interception.interception import Interception
from barnabas.testing.interception.selection import Api, Matcher, Selection
from barnabas.testing.recording.recorded_request import RecordedRequest
from barnabas.testing.waiting.conditions import NothingMoreComes, wait_until
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_may_block, check_wait, with_timeout

if TYPE_CHECKING:
    from barnabas.testing.interception.request import Request

REQUESTS_MAX: Final = 10_000
BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of requests and responses on the wire, including records."""


class Recording:
    """The last 10,000 requests of clients, fewer if they and their responses exceed `bytes_max` (64 MiB), from its
    creation until `stop()`, or until its `with` block ends; recorded requests remain. Iterates in the order of arrival.

    Thread-safe, as the broker is.
    """

    def __init__(self, interception: Interception, *, from_brokers: bool = False) -> None:
        self._interception = interception
        self._from_brokers = from_brokers
        self._requests: deque[RecordedRequest] = deque()
        self._bytes = 0
        self.bytes_max = BYTES_MAX
        self.dropped = 0
        self._listeners: set[Callable[[], None]] = set()
        interception.owner._check_started()
        interception.run(self._start)

    def __repr__(self) -> str:
        return f"<Recording of {len(self)} requests>"

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self.requests())

    def __len__(self) -> int:
        return len(self._requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._interception.owner._is_of_another_process:  # there it continues
            self.stop()

    @property
    def _is_over(self) -> bool:
        """Whether it has ended."""
        return self not in self._interception.observers

    def stop(self) -> None:
        """Stop recording; does nothing if it has ended."""
        self._interception.run(self._stop)

    def requests(self, api: Api | Collection[Api] | None = None, **where: Unpack[Selection]) -> list[RecordedRequest]:
        """The matching requests: `api` and keywords as for faults.

        Errors: ValueError, TypeError as of faults.
        """
        matcher = self._matcher(api, where)
        found: list[RecordedRequest] = []

        def find() -> None:
            found.extend(each for each in self._requests if matcher.matches(each.request))

        self._interception.run(find)
        return found

    def wait_request(
        self,
        api: Api | Collection[Api] | None = None,
        count: int = 1,
        *,
        timeout: float = TIMEOUT_S,
        **where: Unpack[Selection],
    ) -> RecordedRequest:
        """Wait until this number of matching requests have come since the recording began and have a response, or have
        lost their connections, and return the last of these; `timeout` is in seconds of real time.

        Errors: TimeoutError, with the last requests; RuntimeError when the recording has ended before, and inside a
        running event loop: await `wait_request_async` there.
        """
        check_may_block("wait_request_async")
        _check_may_come(count, timeout)
        return self._interception.wait(partial(self._wait_request, self._matcher(api, where), count, timeout))

    async def wait_request_async(
        self,
        api: Api | Collection[Api] | None = None,
        count: int = 1,
        *,
        timeout: float = TIMEOUT_S,
        **where: Unpack[Selection],
    ) -> RecordedRequest:
        """Like `wait_request`, without blocking the event loop that it is awaited on."""
        _check_may_come(count, timeout)
        waiting = partial(self._wait_request, self._matcher(api, where), count, timeout)
        return await self._interception.wait_async(waiting)

    async def _wait_request(self, matcher: Matcher, count: int, timeout_s: float) -> RecordedRequest:
        def reached() -> RecordedRequest | None:
            matching = [r for r in self._requests if matcher.matches(r.request)]
            answered = (r for r in matching if r.answered_ms is not None)
            found = next((r for number, r in enumerate(answered, 1) if number == count), None)
            if found is None and self._is_over and len(matching) < count:
                raise NothingMoreComes(f"{instead()}, and no more can come: the recording has ended. Wait before that")
            return found

        def instead() -> str:
            last = "; ".join(map(repr, list(self._requests)[-5:]))
            return f"there were not {count} such requests; the last ones: {last or 'none'}"

        return await with_timeout(wait_until(reached, self._listeners), timeout_s, instead)

    def _last(self, count: int) -> list[RecordedRequest]:
        """The last requests, at most `count`. Broker's loop only."""
        return list(self._requests)[-count:]

    def chart(self) -> str:
        """A sequence chart in text: clients, brokers, requests and responses by time."""
        from barnabas.testing.recording.chart import text_chart

        return text_chart(self.requests())

    def chart_svg(self) -> str:
        """The same chart as SVG, with errors in red."""
        from barnabas.testing.recording.chart import svg_chart

        return svg_chart(self.requests())

    # --- on the broker's loop ---------------------------------------------------------------------

    def _begin(self, request: Request, size: int, now_ms: int) -> RecordedRequest | None:
        """Record a client's request."""
        if request.is_of_broker and not self._from_brokers:
            return None
        request.look_up()
        recorded = RecordedRequest(self, request, 0, now_ms)
        self._requests.append(recorded)
        self._grow(recorded, size)
        self._changed()
        return recorded

    def _grow(self, recorded: RecordedRequest, size: int) -> None:
        """A request has grown, or its response is added: drop the oldest requests beyond the limit."""
        if recorded._is_dropped:
            return
        recorded.size += size
        self._bytes += size
        while len(self._requests) > REQUESTS_MAX or (self._bytes > self.bytes_max and len(self._requests) > 1):
            oldest = self._requests.popleft()
            oldest._is_dropped = True
            self._bytes -= oldest.size
            self.dropped += 1

    def _changed(self) -> None:
        """Notify waits."""
        for listener in list(self._listeners):
            listener()

    def _now_ms(self) -> int:
        """The time of the broker, or the brokers."""
        return next((server.clock.now_ms() for server in self._interception.owner.live_servers()), 0)

    def _matcher(self, api: Api | Collection[Api] | None, where: Mapping[str, Any]) -> Matcher:
        """A matcher for recorded requests, including those of brokers. Errors: ValueError, TypeError: an impossible
        request, or a broker that a cluster does not have, would match nothing, which would look like a result.
        """
        matcher = Matcher(api, {"from_brokers": True, **where})
        matcher.check_can_match()
        self._interception.owner._check_brokers(matcher.brokers)
        return matcher

    def _start(self) -> None:
        self._interception.observers = (*self._interception.observers, self)
        self._interception.attach_all()

    def _stop(self) -> None:
        others = tuple(observer for observer in self._interception.observers if observer is not self)
        self._interception.observers = others
        self._interception.attach_all()
        self._interception.soon(self._changed)


def _check_may_come(count: int, timeout: float) -> None:
    """Refuse to wait for more requests than are kept. Errors: ValueError, TypeError."""
    check_wait(timeout, count)
    if count > REQUESTS_MAX:
        raise ValueError(f"a recording keeps the last {REQUESTS_MAX} requests: do not wait for {count}")


class Recordable:
    """A broker, or a cluster, whose clients' requests a test can record."""

    _interception: Interception
    _recording: Recording | None = None

    def recorded(self, *, from_brokers: bool = False) -> Recording:
        """Record the requests of clients from now on until the `with` block ends (`with broker.recorded() as seen:`),
        or until `stop()` of the result; with `from_brokers` also requests between brokers of a cluster.

        Errors: RuntimeError when the broker was never started, or was stopped since.
        """
        self._recording = Recording(self._interception, from_brokers=from_brokers)
        return self._recording

    def requests(self, api: Api | Collection[Api] | None = None, **where: Unpack[Selection]) -> list[RecordedRequest]:
        """The matching requests of clients in the latest recording: `recorded()` begins one.

        Errors: RuntimeError when nothing was ever recorded; ValueError, TypeError as of faults.
        """
        return self._recording_or_error().requests(api, **where)

    def wait_request(
        self,
        api: Api | Collection[Api] | None = None,
        count: int = 1,
        *,
        timeout: float = TIMEOUT_S,
        **where: Unpack[Selection],
    ) -> RecordedRequest:
        """Wait for matching requests in the latest recording, see `Recording.wait_request`.

        Errors: TimeoutError; RuntimeError when nothing was ever recorded, or inside a running event loop: await
        `wait_request_async` there.
        """
        return self._recording_or_error().wait_request(api, count, timeout=timeout, **where)

    async def wait_request_async(
        self,
        api: Api | Collection[Api] | None = None,
        count: int = 1,
        *,
        timeout: float = TIMEOUT_S,
        **where: Unpack[Selection],
    ) -> RecordedRequest:
        """Like `wait_request`, without blocking the event loop that it is awaited on."""
        return await self._recording_or_error().wait_request_async(api, count, timeout=timeout, **where)

    @property
    def _last_recording(self) -> Recording | None:
        """The latest recording, whether it has ended or not; None if there was none."""
        return self._recording

    def _recording_or_error(self) -> Recording:
        if self._recording is None:
            self._interception.owner._check_started()
            raise RuntimeError("nothing is recorded: begin with recorded(), as in `with broker.recorded() as seen:`")
        return self._recording
