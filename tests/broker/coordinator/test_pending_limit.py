"""Ids that are handed out to newcomers and never used do not pile up."""

from itertools import count

import pytest

from barnabas.broker.coordinator import group as machine
from barnabas.broker.coordinator.events import JoinGroup, JoinReply
from barnabas.broker.coordinator.settings import GroupSettings
from barnabas.broker.coordinator.state import Group, apply
from barnabas.wire.errors import ErrorCode


def test_a_group_hands_out_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PENDING_MEMBERS_MAX", 3)
    group: Group | None = None
    numbers = count()

    def join(member_id: str, *, member_id_required: bool = True) -> JoinReply:
        nonlocal group
        number = next(numbers)
        event = JoinGroup("g", number, member_id, None, "c", "/127.0.0.1", 10_000, 60_000, "consumer",
                          (("range", b""),), "", f"fresh-{number}", member_id_required, True)  # fmt: skip
        effects = machine.decide(group, event, 0, GroupSettings(group_initial_rebalance_delay_ms=0))
        for change in effects.changes:
            group = apply(group, change)
        replies = [reply for token, reply in effects.replies if token == number]
        return replies[0] if replies else JoinReply(ErrorCode.NONE, member_id)

    ids = [join("").member_id for _ in range(3)]
    assert join("").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    join(ids[0])
    assert group is not None
    assert len(group.members) == 1
    assert join("").error is ErrorCode.MEMBER_ID_REQUIRED
    assert join("").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    join("", member_id_required=False)
    assert len(group.members) == 2
