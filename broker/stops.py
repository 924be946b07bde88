"""The end of a broker: what stops its parts, in the reverse of the order in which they started."""

import contextlib
import inspect
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Stops(contextlib.AsyncExitStack):
    """The functions that stop the started parts; `aclose` calls them, the last one first."""

    def later(self, stop: Callable[[], object]) -> None:
        """Call or await `stop` at the end. Its exceptions are logged: the other parts stop all the same."""

        async def attempt() -> None:
            try:
                pending = stop()
                if inspect.isawaitable(pending):
                    await pending
            except Exception:
                logger.exception("a part of the broker failed to stop (%s)", getattr(stop, "__qualname__", stop))

        self.push_async_callback(attempt)
