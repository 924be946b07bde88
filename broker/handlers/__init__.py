"""One file per API. This table names them; `find_handler` imports a file when its API is first used, and ApiVersions is
computed from what they declare."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from barnabas.broker.api.registry import Handler

_MODULES = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    32: "describe_configs",
    33: "alter_configs",
    35: "describe_log_dirs",
    37: "create_partitions",
    42: "delete_groups",
    44: "incremental_alter_configs",
    47: "offset_delete",
    60: "describe_cluster",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
}


def served_apis() -> Mapping[int, str]:
    """Module name by API key of everything that is served."""
    return MappingProxyType(_MODULES)


@cache
def load_handler(key: int) -> Handler:
    """The handler of a served API key; imports its file."""
    handler: Handler = import_module(f"{__name__}.{_MODULES[key]}").HANDLER
    assert handler.key == key, f"{_MODULES[key]} declares key {handler.key}, not {key}"
    return handler


def find_handler(key: int) -> Handler | None:
    """As `load_handler`; None for an API key that is not served."""
    return load_handler(key) if key in _MODULES else None
