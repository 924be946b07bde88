"""Directions of the network between two hosts that are cut or slow for a while."""

from __future__ import annotations

from tools.simulation.surroundings import Surroundings

Way = tuple[str, str]
"""From one host to another."""


class Links:
    """The directions that are cut or slow now."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._cut: dict[Way, float] = {}
        self._slow: dict[Way, float] = {}

    def cut(self, way: Way, duration_s: float) -> None:
        self._cut[way] = self._around.loop.time() + duration_s
        self._around.network.cut(*way)

    def slow(self, way: Way, duration_s: float, mean_s: float) -> None:
        self._slow[way] = self._around.loop.time() + duration_s
        self._around.network.set_delay(*way, mean_s)

    def look(self) -> None:
        """Called periodically: restore what has been cut or slow for long enough."""
        now_s = self._around.loop.time()
        self._restore(
            [way for way, until_s in self._cut.items() if now_s >= until_s],
            [way for way, until_s in self._slow.items() if now_s >= until_s],
        )

    def restore_all(self) -> None:
        self._restore(list(self._cut), list(self._slow))

    def _restore(self, cut: list[Way], slow: list[Way]) -> None:
        for way in cut:
            del self._cut[way]
            self._around.tell(f"healed: {way[0]} to {way[1]}")
            self._around.network.heal(*way)
        for way in slow:
            del self._slow[way]
            self._around.network.set_delay(*way)
