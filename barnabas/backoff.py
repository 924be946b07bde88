"""The delays between attempts: each is twice as long as the one before, up to a longest one."""


class Backoff:
    """Delays that double: `first_ms`, then each time twice as long, up to `longest_ms`, until it worked (`reset`)."""

    __slots__ = ("_first_ms", "_longest_ms", "_next_ms")

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = self._next_ms = first_ms
        self._longest_ms = longest_ms

    def next_ms(self) -> int:
        """How long to wait before the next attempt, in ms."""
        delay_ms = self._next_ms
        self._next_ms = min(2 * delay_ms, self._longest_ms)
        return delay_ms

    def reset(self) -> None:
        """What was tried has worked: the next delay is `first_ms` again."""
        self._next_ms = self._first_ms
