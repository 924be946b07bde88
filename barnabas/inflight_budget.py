"""A bound on the bytes of unfinished requests that the whole broker holds in memory (Kafka's
`queued.max.request.bytes`).

Connections report how much they hold; when the sum passes the limit, connections that hold something are paused. One of
them, the privileged one, always goes on, so that requests which together exceed the limit are finished one after the
other instead of waiting for each other forever: the bound is the limit plus one largest request.
"""

from collections import OrderedDict
from typing import Protocol


class BudgetedConnection(Protocol):
    """What the budget needs of a connection."""

    def pause_for_budget(self) -> None: ...

    def resume_from_budget(self) -> None: ...


class InflightBudget:
    """Counts bytes held per connection and decides who must stop reading; owned by the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[BudgetedConnection, int] = {}
        self._paused: OrderedDict[BudgetedConnection, None] = OrderedDict()
        self._privileged: BudgetedConnection | None = None

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be reserved before they arrive: half of the limit may be spent on that."""
        return self.used_bytes + size <= self.limit_bytes // 2

    def report(self, connection: BudgetedConnection, held_bytes: int) -> None:
        """`connection` now holds `held_bytes` of requests that have not been answered."""
        before = self._held.get(connection, 0)
        if held_bytes == before:
            return
        self.used_bytes += held_bytes - before
        if held_bytes:
            self._held[connection] = held_bytes
        else:
            self._held.pop(connection, None)
            if connection in self._paused:  # its earlier requests were served meanwhile
                del self._paused[connection]
                connection.resume_from_budget()
            if self._privileged is connection:
                self._privileged = None
        if self.used_bytes > self.limit_bytes:
            self._restrain(connection if held_bytes else None)
        elif self._paused:
            self._resume_all()

    def _restrain(self, connection: BudgetedConnection | None) -> None:
        if self._privileged is None:
            self._privileged = next(iter(self._paused), None) or connection
            if self._privileged is not None and self._privileged in self._paused:
                del self._paused[self._privileged]
                self._privileged.resume_from_budget()
        if connection is not None and connection is not self._privileged and connection not in self._paused:
            self._paused[connection] = None
            connection.pause_for_budget()

    def _resume_all(self) -> None:
        self._privileged = None
        paused, self._paused = self._paused, OrderedDict()
        for connection in paused:
            connection.resume_from_budget()
