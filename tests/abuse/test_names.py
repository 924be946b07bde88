"""Names as long as a request can carry, 32,767 bytes, wherever a request has text: whatever the broker makes of them,
an id, a record, a message for people, must fit what carries it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.handlers import load_handler, served_apis
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from barnabas.wire.schema import Array, Message
from tools.attack.hostile import HealthyClient, answer, ask, connect, create_topic, eventually, frame, receive
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live]

LONG = {"ascii": "n" * 32_767, "of four bytes": "\U0001f600" * 8_191, "quotes": "'" * 32_767}

GOOD: dict[str, Any] = {
    "topic": "t", "name": "t", "group_id": "g", "group": "g", "key": "g", "protocol_type": "consumer",
    "timeout_ms": 1_000, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1_000, "max_wait_ms": 0,
    "num_partitions": 1, "replication_factor": 1, "count": 2, "resource_type": 2, "resource_name": "t",
    "transaction_timeout_ms": 1_000, "acks": -1, "producer_id": -1, "producer_epoch": -1, "generation_id": -1,
    "generation_id_or_member_epoch": -1, "client_software_name": "c", "client_software_version": "1",
    "controller_id": -1, "member_id": "", "replica_id": -1, "session_id": 0, "session_epoch": -1, "max_bytes": 1_000,
    "offset": 0, "api_key": 0, "config_operation": 0, "value": "1", "topics": [], "partition_indexes": [0],
    "allow_auto_topic_creation": False, "resource_type_filter": 2, "operation": 2, "permission_type": 3,
}  # fmt: skip


def text_fields(struct: type[Message], version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a request of a version has text."""
    for field in struct.FIELDS:
        if not field.exists_in(version):
            continue
        kind = field.type.element if isinstance(field.type, Array) else field.type
        here = (*path, field.name)
        if kind == "string":
            yield here
        elif isinstance(kind, type):
            yield from text_fields(kind, version, here)


def filled(struct: type[Message], version: int, path: tuple[str, ...], text: str) -> Message:
    """A message with one element in every array that the path goes through, and the text at its end."""
    made = struct()
    for field in struct.FIELDS:
        if not field.exists_in(version):
            continue
        is_array = isinstance(field.type, Array)
        kind = field.type.element if isinstance(field.type, Array) else field.type
        rest = path[1:] if path and path[0] == field.name else None
        if rest == ():
            value: Any = text
        elif isinstance(kind, type):
            if rest is None and field.is_nullable_in(version):
                continue
            value = filled(kind, version, rest or (), text)
        elif kind == "float64" and not is_array:
            value = 1.0
        elif field.name in GOOD and not is_array:
            value = GOOD[field.name]
        elif is_array and kind == "int32":
            value = 0
        else:
            continue
        setattr(made, field.name, [value] if is_array else value)
    return made


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a18_text_of_32767_bytes(shared_broker: BarnabasProcess, shared_healthy: HealthyClient, text: str) -> None:
    """In every field of every request, one after the other, in the oldest and the newest version: an answer for each,
    and no traceback (which the broker's fixture looks for)."""
    address = shared_broker.bootstrap_servers
    with contextlib.suppress(RuntimeError):  # it is there from the test before
        create_topic(address, "t")
    unanswered, asked = [], 0
    for key in served_apis():
        handler = load_handler(key)
        request_class = messages.api(key).request_class
        for version in sorted({handler.min_version, handler.max_version}):
            for path in text_fields(request_class, version):
                request = filled(request_class, version, path, text)
                asked += 1
                with connect(address) as connection:
                    connection.sendall(frame(request, version, client_id=text if path == ("group_id",) else "c"))
                    if receive(connection) is None:
                        unanswered.append(f"{request_class.__name__} {version}: {'.'.join(path)}")
    print(f"{asked} requests")
    assert asked > 100
    assert not unanswered, "\n".join(unanswered)
    assert "Traceback" not in shared_broker.log_text()


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("is_static", [False, True], ids=["client id", "instance id"])
def test_a18_long_ids_of_members(shared_broker: BarnabasProcess, text: str, is_static: bool) -> None:
    """A group with a member of the longest ids is described, listed and gets its assignment."""
    group_id = text[:-1] + ("s" if is_static else "d")
    join = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id=text if is_static else None,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=text, metadata=b"")],
        reason=None,
    )

    def request(message: Message, version: int, response_class: type[Any]) -> Any:
        connection.sendall(frame(message, version, client_id=text))
        return answer(connection, message, version, response_class)

    with connect(shared_broker.bootstrap_servers) as connection:
        answered: list[Any] = []

        def is_served() -> bool:
            ask(connection, FindCoordinatorRequest(key="g"), 0, FindCoordinatorResponse)
            answered.append(request(join, 5, JoinGroupResponse))
            return answered[-1].error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)

        assert eventually(is_served)
        joined = answered[-1]
        if joined.error_code:
            join.member_id = joined.member_id
            joined = request(join, 5, JoinGroupResponse)
        assert joined.error_code == 0
        sync = SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=join.group_instance_id,
            assignments=[],
        )
        assert request(sync, 3, SyncGroupResponse).error_code == 0
        for version in (0, 5):
            described = request(DescribeGroupsRequest(groups=[group_id]), version, DescribeGroupsResponse)
            assert described.groups[0].members[0].member_id == joined.member_id
        assert group_id in [group.group_id for group in request(ListGroupsRequest(), 0, ListGroupsResponse).groups]
