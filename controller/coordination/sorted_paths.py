"""The paths of all znodes in order, to count those below a znode without looking at each."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

PIECE_MAX: Final = 1_000
"""The maximum number of paths in a piece: an insertion moves no more than that."""


class SortedPaths:
    """A set of paths, as sorted pieces of limited size: a change looks at one piece, a count at the sizes of all."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        ordered, half = sorted(paths), PIECE_MAX // 2
        self._pieces = [ordered[start : start + half] for start in range(0, len(ordered), half)]
        self._last = [piece[-1] for piece in self._pieces]
        """The last path of each piece."""

    def add(self, path: str) -> None:
        """Add a path that is not there."""
        if not self._pieces:
            self._pieces, self._last = [[path]], [path]
            return
        index = min(bisect_left(self._last, path), len(self._pieces) - 1)
        piece = self._pieces[index]
        insort(piece, path)
        if len(piece) > PIECE_MAX:
            half = len(piece) // 2
            self._pieces[index : index + 1] = [piece[:half], piece[half:]]
            self._last[index : index + 1] = [piece[half - 1], piece[-1]]
        else:
            self._last[index] = piece[-1]

    def remove(self, path: str) -> None:
        """Remove a path that is there."""
        index = bisect_left(self._last, path)
        piece = self._pieces[index]
        del piece[bisect_left(piece, path)]
        if piece:
            self._last[index] = piece[-1]
        else:
            del self._pieces[index], self._last[index]

    def count_below(self, path: str) -> int:
        """The number of paths that begin with this one and a slash."""
        prefix = path.rstrip("/")
        return self._position(prefix + chr(ord("/") + 1)) - self._position(prefix + "/")

    def _position(self, path: str) -> int:
        """The number of paths before this one."""
        index = bisect_left(self._last, path)
        before = sum(map(len, self._pieces[:index]))
        return before if index == len(self._pieces) else before + bisect_left(self._pieces[index], path)
