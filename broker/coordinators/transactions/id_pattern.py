"""A regular expression to match transactional ids with (KIP-1152), in RE2's syntax, as in Kafka.

The engine is RE2 (google-re2), whose time is linear in the length of the text; Python's own can be made to run for
ever. It is imported by the first request that needs it.
"""

from typing import Any, Final

from barnabas.wire.errors import ApiError, ErrorCode

CHARACTERS_MAX: Final = 500
"""The maximum length of a pattern: patterns that are made to be slow to compile take 0.1 ms per character."""
MEMORY_BYTES_MAX: Final = 256 * 1024
"""The limit of memory of a compiled pattern, including RE2's state during a match."""
STEPS_PER_ID_MAX: Final = 2_000_000
"""The maximum number of steps of one match, on the event loop: 5 to 40 ms for a pattern that is made to be slow, a
hundredth of it usually."""
STEPS_PER_TURN: Final = 250_000
"""The number of steps before other tasks have a turn."""
CALL_STEPS: Final = 500
"""The approximate cost of each match besides its characters, in steps."""


class IdPattern:
    """`pattern` must match a whole id.

    Errors: ApiError, INVALID_REGULAR_EXPRESSION if RE2 does not accept it, or it takes more than MEMORY_BYTES_MAX;
    POLICY_VIOLATION for more than CHARACTERS_MAX.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > CHARACTERS_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"A regular expression of {len(pattern)} characters; {CHARACTERS_MAX} are allowed.",
            )
        self._compiled = _compile(pattern)

    def steps(self, transactional_id: bytes) -> int:
        """The maximum cost of a match, in steps of a few nanoseconds: each character may take all of the pattern's
        instructions. Errors: ApiError, POLICY_VIOLATION beyond STEPS_PER_ID_MAX.
        """
        steps: int = CALL_STEPS + self._compiled.programsize * len(transactional_id)
        if steps > STEPS_PER_ID_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"A transactional id of {len(transactional_id)} bytes is too long for so large a regular expression.",
            )
        return steps

    def matches(self, transactional_id: bytes) -> bool:
        """Whether the pattern matches a whole id, which is given as UTF-8."""
        return self._compiled.fullmatch(transactional_id) is not None


def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    finally:
        re2.purge()  # its cache of compiled patterns would keep the last 128 patterns of clients
