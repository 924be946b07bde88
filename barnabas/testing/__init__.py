"""Barnabas inside a Python process, for tests: `with Broker() as broker: broker.bootstrap_servers`.

Names are imported on first use: pytest loads this package's plugin in every run, also in those without a broker. The
names in docs/testing.md and docs/testing/ are public. Names that begin with an underscore are not: the modules of this
package use them among each other, where one object has parts in several of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.configuration.config import ConfigError
    from barnabas.testing.broker import Broker
    from barnabas.testing.cluster import Cluster
    from barnabas.testing.cluster_broker import ClusterBroker
    from barnabas.testing.faults import Faults
    from barnabas.testing.group import Group, GroupMember
    from barnabas.testing.lasting import Fault, Hold
    from barnabas.testing.recording import RecordedRequest, Recording
    from barnabas.testing.request import Request
    from barnabas.testing.snapshot import Snapshot
    from barnabas.testing.topic import Record, Topic
    from barnabas.testing.waiting.broker_clock import BrokerClock
    from barnabas.wire.errors import ApiError, ErrorCode

__all__ = [
    "ApiError",
    "Broker",
    "BrokerClock",
    "Cluster",
    "ClusterBroker",
    "ConfigError",
    "ErrorCode",
    "Fault",
    "Faults",
    "Group",
    "GroupMember",
    "Hold",
    "Record",
    "RecordedRequest",
    "Recording",
    "Request",
    "Snapshot",
    "Topic",
]

_MODULES = {
    "ApiError": "barnabas.wire.errors",
    "Broker": "barnabas.testing.broker",
    "BrokerClock": "barnabas.testing.waiting.broker_clock",
    "Cluster": "barnabas.testing.cluster",
    "ClusterBroker": "barnabas.testing.cluster_broker",
    "ConfigError": "barnabas.broker.configuration.config",
    "ErrorCode": "barnabas.wire.errors",
    "Fault": "barnabas.testing.lasting",
    "Faults": "barnabas.testing.faults",
    "Group": "barnabas.testing.group",
    "GroupMember": "barnabas.testing.group",
    "Hold": "barnabas.testing.lasting",
    "Record": "barnabas.testing.topic",
    "RecordedRequest": "barnabas.testing.recording",
    "Recording": "barnabas.testing.recording",
    "Request": "barnabas.testing.request",
    "Snapshot": "barnabas.testing.snapshot",
    "Topic": "barnabas.testing.topic",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
