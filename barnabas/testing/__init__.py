"""Barnabas inside a Python process, for tests: `with Broker() as broker: broker.bootstrap_servers`."""

from barnabas.testing.broker import Broker

__all__ = ["Broker"]
