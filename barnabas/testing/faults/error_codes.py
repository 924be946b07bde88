"""Kafka's errors, as a test names them."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any, Final

from barnabas.wire.errors import ErrorCode

_LIKENESS_MIN: Final = 0.6
_BEGINNING_MIN: Final = 4
"""The number of characters from which a name may be the beginning of a longer one."""

_CODES: Final = {int(code): code for code in ErrorCode}


def error_code(error: Any) -> int:
    """An error's number, from its name or number. Errors: ValueError for no error of Kafka, TypeError for an invalid
    type.
    """
    if not isinstance(error, str | int) or isinstance(error, bool):
        raise TypeError(f"an error is its name, its number or an ErrorCode, not {error!r:.100}")
    if isinstance(error, str):
        code = ErrorCode.NONE if error.upper() == "NONE" else ErrorCode.__members__.get(error)
        near = _similar(error.upper())
        valid = f"did you mean {near!r}?" if near else "its name is to be one of barnabas.wire.errors.ErrorCode"
    else:
        code = _CODES.get(error)
        valid = f"its numbers are {min(_CODES)} and 1 to {max(_CODES)}"
    if code is None:
        raise ValueError(f"Kafka has no error {error!r:.100}: {valid}")
    if code is ErrorCode.NONE:
        raise ValueError(f"the error {code.name} ({code:d}) means success: name the error of a failure")
    return int(code)


def _similar(name: str) -> str | None:
    """The error that is most similar to this name, or begins most alike: NOT_LEADR is NOT_LEADER_OR_FOLLOWER."""

    def likeness(code: ErrorCode) -> tuple[float, float]:
        whole = SequenceMatcher(None, name, code.name).ratio()
        if len(name) < _BEGINNING_MIN:
            return whole, whole
        return max(whole, SequenceMatcher(None, name, code.name[: len(name)]).ratio()), whole

    best = max((code for code in ErrorCode if code), key=likeness)
    return best.name if likeness(best)[0] >= _LIKENESS_MIN else None
