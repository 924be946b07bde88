"""Barnabas inside a Python process, for tests: `with Broker() as broker: broker.bootstrap_servers`.

Each of its rooms uses only those named before it: `waiting/`, `contents/`, `interception/`, `recording/` and `faults/`,
`brokers/`, `control/`. `plugin.py` is the pytest plugin, `containers.py` runs Barnabas in a container for
testcontainers, and `caller.py` finds the test that calls, for warnings.

Names are imported on first use: pytest loads this package's plugin in every run, also in those without a broker. The
names in docs/testing.md and docs/testing/ are public. Names that begin with an underscore are not: the modules of this
package use them among each other, where one object has parts in several of them.

A new public class is in the three lists below; each public name is on one of these pages, which
`tests/testing/test_public_names.py` checks. Examples: `docs/examples/orders/` is an application with its own tests, run
by `tests/testing/test_docs_examples.py`; `docs/recipes/` has clients during failures, run by
`tests/testing/test_recipes.py`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.configuration.config import ConfigError
    from barnabas.testing.brokers.broker import Broker
    from barnabas.testing.brokers.cluster import Cluster
    from barnabas.testing.brokers.cluster_broker import ClusterBroker
    from barnabas.testing.brokers.snapshot import Snapshot
    from barnabas.testing.contents.group import Group, GroupMember
    from barnabas.testing.contents.records import Record
    from barnabas.testing.contents.topic import Topic
    from barnabas.testing.faults.fault import Fault, Hold
    from barnabas.testing.faults.faults import Faults
    from barnabas.testing.interception.request import Request
    from barnabas.testing.recording.recorded_request import RecordedRequest
    from barnabas.testing.recording.recording import Recording
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
    "Broker": "barnabas.testing.brokers.broker",
    "BrokerClock": "barnabas.testing.waiting.broker_clock",
    "Cluster": "barnabas.testing.brokers.cluster",
    "ClusterBroker": "barnabas.testing.brokers.cluster_broker",
    "ConfigError": "barnabas.broker.configuration.config",
    "ErrorCode": "barnabas.wire.errors",
    "Fault": "barnabas.testing.faults.fault",
    "Faults": "barnabas.testing.faults.faults",
    "Group": "barnabas.testing.contents.group",
    "GroupMember": "barnabas.testing.contents.group",
    "Hold": "barnabas.testing.faults.fault",
    "Record": "barnabas.testing.contents.records",
    "RecordedRequest": "barnabas.testing.recording.recorded_request",
    "Recording": "barnabas.testing.recording.recording",
    "Request": "barnabas.testing.interception.request",
    "Snapshot": "barnabas.testing.brokers.snapshot",
    "Topic": "barnabas.testing.contents.topic",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
