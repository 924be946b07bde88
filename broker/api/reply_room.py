"""How large a reply may become, asked before its parts are made.

A request of a few bytes may ask for all that somebody has stored; what it would take to answer is known, or can be
estimated, beforehand. (Kafka bounds fetches only.)
"""

from typing import Final

from barnabas.wire.errors import ApiError, ErrorCode

REPLY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one reply, about. Fetches have their own limit."""


class ReplyRoom:
    """What is left of one reply's size."""

    def __init__(self) -> None:
        self.left_bytes = REPLY_BYTES_MAX

    def take(self, size: int) -> None:
        """Take room for a part of `size` bytes. Errors: ApiError, POLICY_VIOLATION where there is none; the room for
        smaller parts stays.
        """
        if size > self.left_bytes:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"The reply would be larger than {REPLY_BYTES_MAX} bytes: ask for less at a time.",
            )
        self.left_bytes -= size
