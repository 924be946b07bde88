"""Upkeep of many logs, groups, topics or jobs, which goes on when one of them raises.

A loop tries each of them by itself (`SetAside.attempt`). One that raises is set aside: logged once, counted for
/metrics, left out until its time comes, and then tried again, each time after twice as long. The others go on.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from barnabas.backoff import Backoff
from barnabas.clock import Clock

logger = logging.getLogger(__name__)

Member = TypeVar("Member")

_NEVER: Final = 1 << 62
_MEMBERS_MAX: Final = 10_000
"""So many are remembered, lest what comes and goes fills memory; the oldest are forgotten, and told again."""


@dataclass(slots=True)
class _Reason:
    """Why a member is left out until `until_ms` (monotonic)."""

    until_ms: int
    reason: str
    backoff: Backoff


class SetAside(Generic[Member]):
    """The members (logs, groups, topics) that are left out of one activity at present.

    Ownership: one thread at a time; lengths and `failures` may be read by any.

    Args:
        activity: what the loop does, for log lines and the label of the metric: "retention".
        clock: decides when somebody is tried again.
        first_delay_ms: how long somebody is left out who raised for the first time; 0 is not at all.
        longest_delay_ms: what doubling that ends at.
        name: a member in log lines.
        members_max: how many are remembered.
    """

    def __init__(
        self,
        activity: str,
        clock: Clock,
        *,
        first_delay_ms: int = 60_000,
        longest_delay_ms: int = 3_600_000,
        name: Callable[[Member], str] = str,
        members_max: int = _MEMBERS_MAX,
    ) -> None:
        self.activity = activity
        self.failures = 0
        """How often somebody raised since the start."""
        self._clock = clock
        self.first_delay_ms = first_delay_ms
        self._longest_delay_ms = longest_delay_ms
        self._name = name
        self._members_max = members_max
        self._reasons: dict[Member, _Reason] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    @property
    def members(self) -> list[Member]:
        """Those who are set aside, also those whose time has come but who were not tried yet."""
        return list(self._reasons)

    def ready(self, members: Collection[Member]) -> list[Member]:
        """All of `members` but those that are set aside and whose time has not come; forgets who is no member any
        more."""
        if not self._reasons:
            return list(members)
        existing = set(members)
        for gone in [member for member in self._reasons if member not in existing]:
            del self._reasons[gone]
        return [member for member in members if self.is_ready(member)]

    def is_ready(self, member: Member) -> bool:
        """Whether a member may be tried now."""
        reason = self._reasons.get(member)
        return reason is None or reason.until_ms <= self._clock.monotonic_ms()

    @contextmanager
    def attempt(self, member: Member) -> Iterator[None]:
        """Try a member: an exception of the block ends here and sets it aside, a block that ends well brings it
        back."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this one, the others go on
            self.put(member, error)
        else:
            self.release(member)

    def put(self, member: Member, error: Exception, *, reason: str = "", is_final: bool = False) -> int:
        """Set a member aside; if it `is_final`, until the next start. With a `reason` the log has that instead of a
        traceback. Returns after how many ms it is tried again (if it is not final)."""
        self.failures += 1
        told = self._reasons.pop(member, None)
        backoff = Backoff(self.first_delay_ms, self._longest_delay_ms) if told is None else told.backoff
        delay_ms = backoff.next_ms()
        until_ms = _NEVER if is_final else self._clock.monotonic_ms() + delay_ms
        why = reason or f"{type(error).__name__}: {error}"
        if len(self._reasons) >= self._members_max:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[member] = _Reason(until_ms, why, backoff)
        if told is None or told.reason != why:
            again = "at the next start" if is_final else f"in {delay_ms // 1000} s or later"
            trace = None if reason else error
            with suppress(Exception):  # what cannot be told, with a clock beyond all dates, is set aside as well
                logger.error("%s of %s failed, the next try is %s: %s", self.activity, self._name(member), again, why,
                             exc_info=trace)  # fmt: skip
        return delay_ms

    def release(self, member: Member) -> None:
        """Take a member in again, since an attempt succeeded; that is logged."""
        if self._reasons and self._reasons.pop(member, None) is not None:
            with suppress(Exception):
                logger.info("%s of %s works again", self.activity, self._name(member))

    def forget(self, member: Member) -> None:
        """Know nothing more of a member that is gone, or that is not for this activity any more."""
        self._reasons.pop(member, None)
