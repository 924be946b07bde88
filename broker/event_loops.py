"""Event loops of what this project runs: uvloop's, or, on platforms that it does not exist for, asyncio's own."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
