"""Event loops for brokers of tests: uvloop's, or, where that is not installed, the standard one."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
