"""The ACL of each znode of a cluster with `zookeeper.set.acl`, as ZkData.defaultAcls has it."""

import pytest

from barnabas.controller.coordination.acl import CREATOR, WORLD_ANYONE, WORLD_READS
from barnabas.controller.znode_acls import acls_of
from barnabas.controller.znodes import PERSISTENT_PATHS

OPEN, READABLE, SECRET = (WORLD_ANYONE,), (CREATOR, WORLD_READS), (CREATOR,)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/consumers", OPEN),
        ("/consumers/group", READABLE),
        ("/", READABLE),
        ("/clusters/one", READABLE),
        ("/admin/delete_topics/t", READABLE),
        ("/brokers/ids/1", READABLE),
        ("/brokers/topics/t/partitions/0/state", READABLE),
        ("/cluster/id", READABLE),
        ("/config", READABLE),
        ("/config/topics/t", READABLE),
        ("/config/changes/config_change_", READABLE),
        ("/config/clients/c", READABLE),
        ("/config/ips/127.0.0.1", READABLE),
        ("/config/users", SECRET),
        ("/config/users/alice", SECRET),
        ("/config/users/alice/clients/c", SECRET),
        ("/config/brokers", SECRET),
        ("/config/brokers/1", SECRET),
        ("/config/brokers/<default>", SECRET),
        ("/controller", READABLE),
        ("/controller_epoch", READABLE),
        ("/delegation_token", READABLE),
        ("/delegation_token/token_changes/token_change_", READABLE),
        ("/delegation_token/tokens", SECRET),
        ("/delegation_token/tokens/id", SECRET),
        ("/feature", READABLE),
        ("/isr_change_notification", READABLE),
        ("/kafka-acl/Topic/t", READABLE),
        ("/kafka-acl-changes/acl_changes_", READABLE),
        ("/kafka-acl-extended/prefixed/Group/g", READABLE),
        ("/kafka-acl-extended-changes/acl_changes_", READABLE),
        ("/latest_producer_id_block", READABLE),
        ("/log_dir_event_notification", READABLE),
    ],
)
def test_paths(path: str, expected: object) -> None:
    assert acls_of(path) == expected


def test_persistent_paths() -> None:
    """Of the znodes of every cluster two have secrets, and one is open."""
    assert {path for path in PERSISTENT_PATHS if acls_of(path) == SECRET} == {"/config/users", "/config/brokers"}
    assert {path for path in PERSISTENT_PATHS if acls_of(path) == OPEN} == {"/consumers"}
