"""Kafka's errors, as a test names them."""

from __future__ import annotations

import difflib
from typing import Any, Final

from barnabas.wire.errors import ErrorCode

_CODES: Final = {int(code): code for code in ErrorCode}


def error_code(error: Any) -> int:
    """An error's number, from its name or number. Errors: ValueError for no error of Kafka, TypeError for an invalid
    type.
    """
    if not isinstance(error, str | int) or isinstance(error, bool):
        raise TypeError(f"an error is its name, its number or an ErrorCode, not {error!r:.100}")
    if isinstance(error, str):
        code = ErrorCode.NONE if error.upper() == "NONE" else ErrorCode.__members__.get(error)
        near = difflib.get_close_matches(error.upper(), [code.name for code in ErrorCode if code], 1)
        valid = f"did you mean {near[0]!r}?" if near else "its name is to be one of barnabas.wire.errors.ErrorCode"
    else:
        code = _CODES.get(error)
        valid = f"its numbers are {min(_CODES)} and 1 to {max(_CODES)}"
    if code is None:
        raise ValueError(f"Kafka has no error {error!r:.100}: {valid}")
    if code is ErrorCode.NONE:
        raise ValueError(f"the error {code.name} ({code:d}) means success: name the error of a failure")
    return int(code)
