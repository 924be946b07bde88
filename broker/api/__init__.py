"""From a frame to a handler and back: dispatch, the registry of APIs, the request context.

A file in `broker/handlers/` declares its API as a `HANDLER` (`registry.py`). On the inter-broker listener of brokers
with a parent's secret nothing is served before authentication (`authentication.py`).
"""
