"""Long work on the event loop, in pieces: between them everybody else has a turn.

Whose requests are begun in a round of the loop is another matter: `broker/network/turns.py`.
"""

import asyncio
from typing import Final

ENTRIES_PER_TURN: Final = 100
"""Of a request, or of what is kept in memory: a few milliseconds."""

LOGS_PER_TURN: Final = 20
"""Where each costs calls of the operating system: a log is made in 0.2 ms."""


class Turns:
    """Counts what is done, and gives the event loop a turn after each `per_turn` of it.

    Entries are counted and not the time, so that the same work has the same turns each time (decision 10: what was
    looked up before `after_one` is looked at again after it).
    """

    def __init__(self, per_turn: int = ENTRIES_PER_TURN) -> None:
        self._per_turn = per_turn
        self._done = 0

    async def after_one(self) -> None:
        """One more is done; others have their turn if it is time."""
        self._done += 1
        if self._done >= self._per_turn:
            self._done = 0
            await asyncio.sleep(0)
