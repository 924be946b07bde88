"""The handlers: one file per API, whose head says its versions, behaviour, errors and deviations.

A new API is a file here with its `HANDLER` (`broker/api/registry.py`), a line in a table below, and:

- what it asks the authorizer, in the paragraph "Authorization:" of its head (`tools/references/authorization.py` says
  how), and a case in `tests/broker/handlers/authorization_cases.py`;
- its messages, if there are none yet: a name in `tools/wiregen/selection.py`;
- a request for the attacks in `tools/attack/requests.py`, one between brokers in
  `tests/abuse/test_numbers_between_brokers.py`;
- the fields that name topics, groups and so on, for faults: `barnabas/testing/interception/api_entries.py`;
- a part that handlers do not have yet: a field of `Services` (`broker/services.py`).

An API between brokers also says `is_inter_broker`, and is served on their listener alone. `find_handler` imports a file
when its API is first used, and ApiVersions is computed from the declarations of the handlers for clients.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

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
    17: "sasl_handshake",
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
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    35: "describe_log_dirs",
    36: "sasl_authenticate",
    37: "create_partitions",
    38: "create_delegation_token",
    39: "renew_delegation_token",
    40: "expire_delegation_token",
    41: "describe_delegation_token",
    42: "delete_groups",
    43: "elect_leaders",
    44: "incremental_alter_configs",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    47: "offset_delete",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    50: "describe_user_scram_credentials",
    51: "alter_user_scram_credentials",
    60: "describe_cluster",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
    74: "list_config_resources",
    75: "describe_topic_partitions",
}

_BETWEEN_BROKERS = {
    4: "leader_and_isr",
    5: "stop_replica",
    6: "update_metadata",
    7: "controlled_shutdown",
    56: "alter_partition",
    67: "allocate_producer_ids",
}
"""The APIs that brokers of a cluster call on each other."""


def served_apis() -> Mapping[int, str]:
    """Module name by API key of all APIs for clients."""
    return MappingProxyType(_MODULES)


def apis_between_brokers() -> Mapping[int, str]:
    """Module name by API key of the APIs that only other brokers may call."""
    return MappingProxyType(_BETWEEN_BROKERS)


@cache
def load_handler(key: int) -> Handler[Any, Any]:
    """The handler of a served API key; imports its file."""
    module = _MODULES.get(key) or _BETWEEN_BROKERS[key]
    handler: Handler[Any, Any] = import_module(f"{__name__}.{module}").HANDLER
    assert handler.key == key, f"{module} declares key {handler.key}, not {key}"
    return handler


def find_handler(key: int) -> Handler[Any, Any] | None:
    """Like `load_handler`; None for an API key that is not for clients."""
    return load_handler(key) if key in _MODULES else None


def find_handler_in_cluster(key: int) -> Handler[Any, Any] | None:
    """The handler of an API on the inter-broker listener, for clients or only for brokers; or None."""
    return load_handler(key) if key in _MODULES or key in _BETWEEN_BROKERS else None
