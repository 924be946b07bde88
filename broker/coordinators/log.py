"""The log of a coordinator: its internal topic, partition by partition."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class CoordinatorLog(Protocol):
    """An internal topic, for its coordinator."""

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append one batch and return the end offset after it; `transaction_version` is for markers.

        Errors: ApiError; NOT_COORDINATOR when it is unknown whether the batch was written or this broker may no longer
        write, any other error when nothing was written.
        """
        ...

    def committed(self, partition: int, end_offset: int) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future that is done once it is, however late, or
        fails with ApiError when leadership or the log is lost.
        """
        ...

    async def read_all(self, partition: int, take: Callable[[bytes | bytearray | memoryview], bool]) -> None:
        """Pass chunks of whole batches, from the log's start to its end, to `take` in a thread, one after the other,
        until it returns False.

        Errors: ApiError; exceptions of `take`.
        """
        ...
