"""From a frame to a handler and back: dispatch, the registry of APIs, the request context; clients in this process.

A file in `broker/handlers/` declares its API as a `HANDLER` (`registry.py`). On the inter-broker listener of brokers
with a parent's secret nothing is served before authentication (`authentication.py`). A client in the broker's own
process asks through the dispatcher and its bounds (`local.py`).
"""
