"""Whether the guarantees of a run still hold.

They end when all in-sync replicas of a partition may lack records: no later violation means anything, and the run ends.
"""

from __future__ import annotations

from tools.simulation.surroundings import Surroundings


class Guarantee:
    """The guarantees of one run."""

    def __init__(self, around: Surroundings) -> None:
        self.is_over = False
        self._around = around
        self._found_before = 0

    def end(self, lost: str) -> None:
        """All in-sync replicas of a partition have lost `lost`."""
        if not self.is_over:
            self._around.tell(f"the last in sync has lost its {lost}")
            self._around.count(f"last in sync without {lost}")
            self._found_before = len(self._around.wrong)
            self.is_over = True

    def forgive(self) -> None:
        """Drop the violations found after the guarantees ended."""
        if self.is_over:
            del self._around.wrong[self._found_before :]
