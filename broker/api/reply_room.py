"""Limits the size of a response before its parts are built.

A request of a few bytes may request all data that clients have stored, or the same item 50,000 times. Each item gets a
result, in order, as in Kafka; a repeated item is not computed again, and items that would make the response too large
are refused. (Kafka limits fetches only.)
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from barnabas.wire.errors import ApiError, ErrorCode

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def check_reply(size: int, bytes_max: int) -> None:
    """Raise an error if a response of about `size` bytes may not be built. Errors: ApiError, POLICY_VIOLATION."""
    if size > bytes_max:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"The reply would be larger than {bytes_max} bytes: ask for less at a time."
        )


def text_bytes(text: str | None) -> int:
    """The maximum size of a text in a response, in bytes of UTF-8, besides its length."""
    return 0 if text is None else len(text) * (1 if text.isascii() else 4)


class ReplyRoom(Generic[Question, Answer]):
    """The results of one response, which may have about `bytes_max` bytes; `size_of` estimates the size
    of one result.
    """

    def __init__(self, size_of: Callable[[Answer], int], bytes_max: int) -> None:
        self._size_of = size_of
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._known: dict[Question, tuple[Answer, int]] = {}

    def again(self, question: Question) -> Answer | None:
        """The result of an item that was requested before; None for a new one. Errors: ApiError, POLICY_VIOLATION, if
        there is no room for it, and for every item after that.
        """
        check_reply(self._taken_bytes, self._bytes_max)
        found = self._known.get(question)
        if found is None:
            return None
        self._take(found[1])
        return found[0]

    def first(self, question: Question, answer: Answer) -> Answer:
        """Remember the result of a new item, and return it. Errors: as `again`."""
        size = self._size_of(answer)
        self._known[question] = answer, size
        self._take(size)
        return answer

    def _take(self, size: int) -> None:
        self._taken_bytes += size
        check_reply(self._taken_bytes, self._bytes_max)
