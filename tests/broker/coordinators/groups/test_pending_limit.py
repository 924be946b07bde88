"""Ids that are handed out to newcomers and never used do not pile up."""

from itertools import count

from barnabas.broker.coordinators.groups.classic import group as machine
from barnabas.broker.coordinators.groups.classic.state import Group, apply
from barnabas.broker.coordinators.groups.events import JoinGroup, JoinReply
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode


def test_a_group_forgets_its_oldest_unused_member_ids() -> None:
    settings = GroupSettings(group_initial_rebalance_delay_ms=0, pending_members_max=3)
    group: Group | None = None
    numbers = count()

    def join(member_id: str, *, member_id_required: bool = True) -> JoinReply:
        nonlocal group
        number = next(numbers)
        event = JoinGroup("g", number, member_id, None, "c", "/127.0.0.1", 10_000, 60_000, "consumer",
                          (("range", b""),), "", f"fresh-{number}", member_id_required, True)  # fmt: skip
        effects = machine.decide(group, event, 0, settings)
        for change in effects.changes:
            group = apply(group, change)
        replies = [reply for token, reply in effects.replies if token == number]
        return replies[0] if replies else JoinReply(ErrorCode.NONE, member_id)

    ids = [join("").member_id for _ in range(3)]
    assert group is not None
    assert list(group.pending_members) == ids
    ids.append(join("").member_id)
    assert list(group.pending_members) == ids[1:]
    assert join(ids[0]).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not group.members
    join(ids[3])
    assert list(group.members) == [ids[3]]
    assert list(group.pending_members) == ids[1:3]
