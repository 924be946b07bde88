"""Long work on the event loop in pieces: between two pieces, other callbacks have a turn.

The order in which requests begin in a round of the loop is decided elsewhere: `broker/network/turns.py`.
"""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Final, TypeAlias, TypeVar

ENTRIES_PER_TURN: Final = 100
"""How many entries of a request, or of what is kept in memory, are dealt with before others have a turn: they take a
few milliseconds."""

LOGS_PER_TURN: Final = 20
"""How many logs are worked on before others have a turn; each of them costs calls of the operating system: one is made
in 0.2 ms."""


T = TypeVar("T")

InPieces: TypeAlias = Generator[None, None, T | Awaitable[T]]
"""Work that yields where others may have their turn, and returns its result, or what the result is awaited from."""


def in_turns(work: InPieces[T]) -> T | Awaitable[T]:
    """Do work of which nobody knows beforehand how much it is: what it returns if that comes in one piece, which then
    costs no task, else a coroutine for the rest."""
    try:
        next(work)
    except StopIteration as done:
        result: T | Awaitable[T] = done.value
        return result
    return _rest(work)


async def all_in_turns(work: InPieces[T]) -> T:
    """The same for who waits for the result in any case."""
    result = in_turns(work)
    return await result if isinstance(result, Awaitable) else result


async def _rest(work: InPieces[T]) -> T:
    while True:
        await asyncio.sleep(0)
        try:
            next(work)
        except StopIteration as done:
            result: T | Awaitable[T] = done.value
            return await result if isinstance(result, Awaitable) else result


class Turns:
    """Counts what is done, and gives the event loop a turn after each `per_turn` of it.

    Entries are counted and not the time, so that the same work has the same turns each time (decision 10: what was
    looked up before `after_one` is looked at again after it).
    """

    def __init__(self, per_turn: int = ENTRIES_PER_TURN) -> None:
        self._per_turn = per_turn
        self._done = 0

    def is_over(self, count: int = 1) -> bool:
        """`count` more are done; whether it is time for others (for `InPieces`, which yields then)."""
        self._done += count
        if self._done < self._per_turn:
            return False
        self._done = 0
        return True

    async def after_one(self) -> None:
        """One more is done; others have their turn if it is time."""
        if self.is_over():
            await asyncio.sleep(0)

    async def after(self, count: int) -> None:
        """Call this after so many things that were done at once."""
        if self.is_over(count):
            await asyncio.sleep(0)
