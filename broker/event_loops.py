"""Event loops of this project: uvloop's, or asyncio's own on platforms without uvloop."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
