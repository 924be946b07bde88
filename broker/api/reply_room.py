"""How large a reply may become, asked before its parts are made.

A request of a few bytes may ask for all that somebody has stored, or for the same thing 50,000 times. Each question is
answered, in order, as in Kafka; what is asked again is not worked out again, and what would make the reply too large is
refused. (Kafka bounds fetches only.)
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from barnabas.wire.errors import ApiError, ErrorCode

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def check_reply(size: int, bytes_max: int) -> None:
    """Whether a reply of about `size` bytes may be made. Errors: ApiError, POLICY_VIOLATION."""
    if size > bytes_max:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"The reply would be larger than {bytes_max} bytes: ask for less at a time."
        )


def text_bytes(text: str | None) -> int:
    """How many bytes a text takes in a reply at most, in UTF-8, besides its length."""
    return 0 if text is None else len(text) * (1 if text.isascii() else 4)


class ReplyRoom(Generic[Question, Answer]):
    """The answers of one reply, which may have about `bytes_max` bytes; `size_of` estimates those of one answer."""

    def __init__(self, size_of: Callable[[Answer], int], bytes_max: int) -> None:
        self._size_of = size_of
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._known: dict[Question, tuple[Answer, int]] = {}

    def again(self, question: Question) -> Answer | None:
        """The answer to a question that was asked before. Errors: ApiError, POLICY_VIOLATION, where there is no room
        for it, and for every question after that.
        """
        check_reply(self._taken_bytes, self._bytes_max)
        found = self._known.get(question)
        if found is None:
            return None
        self._take(found[1])
        return found[0]

    def first(self, question: Question, answer: Answer) -> Answer:
        """Remember the answer to a new question, and return it. Errors: as `again`."""
        size = self._size_of(answer)
        self._known[question] = answer, size
        self._take(size)
        return answer

    def _take(self, size: int) -> None:
        self._taken_bytes += size
        check_reply(self._taken_bytes, self._bytes_max)
