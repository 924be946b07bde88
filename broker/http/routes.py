"""The table of routes that an HTTP port serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Route:
    """Requests of one method (GET answers HEAD, too) for one pattern of paths, as aiohttp has them: `/topics/{topic}`.

    `handle` is called with a complete request and its body. A body may have up to `body_bytes_max` bytes; without that
    the request has none. Of responses that may be large (`has_large_responses`) few are held at a time.
    """

    method: str
    path: str
    handle: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
    body_bytes_max: int = 0
    has_large_responses: bool = False
