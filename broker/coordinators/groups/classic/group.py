"""The membership machine of classic consumer groups: `decide(group, event, now_ms, settings) -> Effects`.

It reads the group and never alters it; `state.apply` applies the returned changes. Waiting JoinGroup and SyncGroup
requests are tokens in the group. Source: Kafka 4.3's GroupMetadataManager (classicGroup...) and ClassicGroup; KIP-345
(static members), KIP-394 (member id required), KIP-800 (reasons), KIP-814 (skip assignment).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.coordinators.groups.changes import (
    GroupRecord,
    Member,
    MemberIdIssued,
    MemberJoined,
    MemberRejoined,
    MemberReplaced,
    SyncArrived,
)
from barnabas.broker.coordinators.groups.classic.draft import Draft, member_error
from barnabas.broker.coordinators.groups.classic.rebalance import (
    complete_join,
    complete_join_if_all_joined,
    current_generation_reply,
    join_time_over,
    joined_members,
    newcomers_time_over,
    prepare_rebalance,
    rebalance_or_complete_join,
    spread_assignment,
)
from barnabas.broker.coordinators.groups.classic.state import TRANSITIONS, Group, GroupState, apply
from barnabas.broker.coordinators.groups.events import (
    JOIN,
    NEWCOMERS,
    SESSION,
    SYNC,
    Effects,
    GroupEvent,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Leaver,
    LeaveReply,
    LeaverReply,
    Loaded,
    StoreRefused,
    SyncGroup,
    SyncReply,
    TimerFired,
)
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode

__all__ = ["TRANSITIONS", "Group", "GroupState", "apply", "decide"]

NO_REASON: Final = "not provided"

MEMBER_NAME_MAX: Final = 1_000
"""The maximum number of characters of the client id or instance id that a member id begins with. Kafka takes the whole
id; of the longest, 32,767 bytes, it makes a member id that no response can carry.
"""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""The time for which a new member's first JoinGroup may wait, since a client without a member id cannot send heartbeats
(Kafka's constant).
"""


def decide(group: Group | None, event: GroupEvent, now_ms: int, settings: GroupSettings) -> Effects:
    """The effects of an event on a group (None: the group does not exist). `now_ms` is wall-clock time; timers are
    delays from now.
    """
    draft = Draft(group, event.group_id, now_ms, settings)
    _DECIDERS[type(event)](draft, event)
    return draft.effects


def _join(draft: Draft, event: JoinGroup) -> None:
    is_newcomer = event.member_id == ""
    if not draft.exists:
        if not is_newcomer:
            draft.reply(event.token, JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, event.member_id))
            return
        if not (event.protocol_type and event.protocols):
            draft.reply(event.token, JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
            return
        draft.store(GroupRecord(event.group_id, "", 0, None, None, draft.now_ms, ()))
    group = draft.group
    if not _has_room(group, event.member_id, draft.settings.group_max_size):
        draft.reply(event.token, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        if group.is_known(event.member_id):
            draft.remove(event.member_id)
            complete_join_if_all_joined(draft)
    elif not group.supports(event.protocol_type, event.protocols):
        draft.reply(event.token, JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, event.member_id))
    elif is_newcomer:
        _join_newcomer(draft, event)
    elif event.member_id in group.pending_members and event.group_instance_id is None:
        _add_member(draft, event, event.member_id)
    else:
        error = member_error(group, event.member_id, event.group_instance_id)
        if error is ErrorCode.NONE:
            _rejoin(draft, event, group.members[event.member_id])
        else:
            draft.reply(event.token, JoinReply(error, event.member_id))


def _has_room(group: Group, member_id: str, group_max_size: int) -> bool:
    """Whether `group.max.size` has room for this member.

    During the join phase the waiting members count instead of all members: after the limit was lowered the last ones to
    join are refused.
    """
    if group.state is GroupState.PREPARING_REBALANCE:
        return member_id in group.waiting_joins or len(group.waiting_joins) < group_max_size
    if group.state is GroupState.EMPTY:
        return True
    return member_id in group.members or len(group.members) < group_max_size


def _join_newcomer(draft: Draft, event: JoinGroup) -> None:
    group = draft.group
    if event.group_instance_id is not None:
        member_id = _new_member_id(event.group_instance_id, event)
        holder = group.static_members.get(event.group_instance_id)
        if holder is None:
            _add_member(draft, event, member_id)
        else:
            _replace_static_member(draft, event, holder, member_id)
        return
    member_id = _new_member_id(event.client_id, event)
    if event.member_id_required:
        if len(group.pending_members) >= draft.settings.pending_members_max:
            draft.remove(next(iter(group.pending_members)))
        draft.change(MemberIdIssued(member_id))
        draft.schedule_session(member_id, event.session_timeout_ms)
        draft.reply(event.token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    else:
        _add_member(draft, event, member_id)


def _new_member_id(name: str, event: JoinGroup) -> str:
    """A member id in Kafka's form, but with a name short enough for every response and record."""
    return f"{name[:MEMBER_NAME_MAX]}-{event.fresh_id}"


def _add_member(draft: Draft, event: JoinGroup, member_id: str) -> None:
    member = Member(
        member_id,
        event.group_instance_id,
        event.client_id,
        event.client_host,
        event.rebalance_timeout_ms,
        event.session_timeout_ms,
        event.protocol_type,
        event.protocols,
    )
    draft.change(MemberJoined(member, event.token))
    draft.schedule_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
    reason = "adding member %s; client reason: %s"
    rebalance_or_complete_join(draft, reason, member_id, event.reason or NO_REASON, newcomer=True)


def _rejoin(draft: Draft, event: JoinGroup, member: Member) -> None:
    """Answer a member that joins again: the response depends on whether anything could change (GroupCoordinator's
    rejoin rules)."""
    group = draft.group
    is_leader = group.leader_id == member.member_id
    unchanged = member.protocols == event.protocols
    if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
        # It probably did not receive the first response.
        members = joined_members(group) if is_leader else ()
        draft.reply(event.token, current_generation_reply(group, member.member_id, members=members))
    elif group.state is GroupState.STABLE and unchanged and not is_leader:
        draft.reply(event.token, current_generation_reply(group, member.member_id))
    else:
        # A leader joins again without a change of its own when, for example, a topic got more partitions.
        _answer_superseded_join(draft, member.member_id)
        draft.change(_rejoined(event, member.member_id, event.token))
        rebalance_or_complete_join(
            draft,
            "member %s joins again during %s; client reason: %s",
            member.member_id,
            group.state.value,
            event.reason or NO_REASON,
        )


def _rejoined(event: JoinGroup, member_id: str, token: int | None) -> MemberRejoined:
    return MemberRejoined(member_id, event.protocols, event.rebalance_timeout_ms, event.session_timeout_ms, token)


def _answer_superseded_join(draft: Draft, member_id: str) -> None:
    """Answer the earlier JoinGroup of a member that has sent another one. Kafka never answers it; here every request
    gets a response.
    """
    token = draft.group.waiting_joins.get(member_id)
    if token is not None:
        draft.reply(token, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id))


def _replace_static_member(draft: Draft, event: JoinGroup, old_member_id: str, member_id: str) -> None:
    """Replace a static member whose client has restarted. In a stable group it takes its old place without a rebalance,
    once that is stored.
    """
    old_leader_id = draft.group.leader_id
    draft.answer_waiting(old_member_id, ErrorCode.FENCED_INSTANCE_ID)
    draft.cancel_session(old_member_id)
    draft.change(MemberReplaced(old_member_id, member_id))
    is_stable = draft.group.state is GroupState.STABLE
    draft.change(_rejoined(event, member_id, None if is_stable else event.token))
    draft.schedule_session(member_id)
    draft.note(
        "Group %s: static member %s came back in state %s, %s replaces %s",
        draft.group_id,
        event.group_instance_id,
        draft.group.state.value,
        member_id,
        old_member_id,
    )
    if not is_stable:
        # The leader may have received the old id: only a new rebalance gives the new one an assignment.
        rebalance_or_complete_join(draft, "static member %s came back", member_id)
        return
    group = draft.group
    if group.select_protocol() != group.protocol_name:
        draft.change(_rejoined(event, member_id, event.token))
        prepare_rebalance(draft, "static member %s came back with other protocols", member_id)
        return
    draft.store(group.to_record({member.member_id: member.assignment for member in group.members.values()}))
    draft.reply(event.token, _static_member_reply(draft.group, event, member_id, old_leader_id))


def _static_member_reply(group: Group, event: JoinGroup, member_id: str, old_leader_id: str | None) -> JoinReply:
    """A returning leader must not assign again: a client that supports `skip_assignment` receives that flag, an older
    one its old id as the leader.
    """
    if not event.can_skip_assignment:
        return current_generation_reply(group, member_id, leader_id=old_leader_id)
    is_leader = group.leader_id == member_id
    members = joined_members(group) if is_leader else ()
    return current_generation_reply(group, member_id, members=members, skip_assignment=is_leader)


def _sync(draft: Draft, event: SyncGroup) -> None:
    error = _sync_error(draft, event)
    if error is not ErrorCode.NONE:
        draft.reply(event.token, SyncReply(error))
        return
    group = draft.group
    if group.state is GroupState.STABLE:
        draft.change(SyncArrived(event.member_id, None))
        assignment = group.members[event.member_id].assignment
        draft.reply(event.token, SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment))
    else:
        superseded = group.waiting_syncs.get(event.member_id)
        if superseded is not None:
            draft.reply(superseded, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        draft.change(SyncArrived(event.member_id, event.token))
    if not draft.group.pending_syncs:
        draft.cancel(SYNC)
    if group.state is GroupState.COMPLETING_REBALANCE and group.leader_id == event.member_id:
        spread_assignment(draft, dict(event.assignments))


def _sync_error(draft: Draft, event: SyncGroup) -> ErrorCode:
    if not draft.exists:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = draft.group
    error = member_error(group, event.member_id, event.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(event.protocol_type, group.protocol_type) or _differs(event.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(told: str | None, known: str | None) -> bool:
    return told is not None and known is not None and told != known


def _heartbeat(draft: Draft, event: Heartbeat) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    if draft.exists:
        group = draft.group
        error = member_error(group, event.member_id, event.group_instance_id)
        if error is ErrorCode.NONE and event.generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.NONE:
            draft.schedule_session(event.member_id)
            if group.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
    draft.reply(event.token, HeartbeatReply(error))
    draft.effects.at_once = True


def _leave(draft: Draft, event: LeaveGroup) -> None:
    answers = tuple(
        LeaverReply(leaver.member_id, leaver.group_instance_id, _remove_leaver(draft, leaver))
        for leaver in event.leavers
    )
    left = sum(answer.error is ErrorCode.NONE for answer in answers)
    if left and draft.group.state is not GroupState.EMPTY:
        rebalance_or_complete_join(draft, "%d members left", left)
    draft.reply(event.token, LeaveReply(answers))


def _remove_leaver(draft: Draft, leaver: Leaver) -> ErrorCode:
    if not draft.exists:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = draft.group
    member_id = leaver.member_id
    if member_id == "":
        # An administrator removes a static member by its instance id.
        member_id = group.static_members.get(leaver.group_instance_id or "", "")
    elif member_id in group.pending_members:
        draft.remove(member_id)
        return ErrorCode.NONE
    error = member_error(group, member_id, leaver.group_instance_id)
    if error is ErrorCode.NONE:
        draft.note(
            "Group %s: member %s left; client reason: %s",
            group.group_id,
            member_id,
            leaver.reason or NO_REASON,
        )
        draft.remove(member_id)
    return error


def _timer_fired(draft: Draft, event: TimerFired) -> None:
    if not draft.exists:
        return
    if event.key.kind == SESSION:
        _session_over(draft, event.key.member_id)
    elif event.key.kind == NEWCOMERS:
        newcomers_time_over(draft)
    elif event.key.kind == JOIN:
        join_time_over(draft)
    elif event.key.kind == SYNC:
        _sync_time_over(draft)


def _session_over(draft: Draft, member_id: str) -> None:
    """End the session of a silent member. A member with a waiting request counts as alive, except a new member, whose
    client may have gone long ago.
    """
    group = draft.group
    if member_id in group.pending_members:
        draft.remove(member_id)
        _complete_join_if_nobody_is_missing(draft)
        return
    is_parked = member_id in group.waiting_joins or member_id in group.waiting_syncs
    if member_id not in group.members or (is_parked and member_id not in group.new_members):
        return
    draft.note("Group %s: the session of member %s ended", group.group_id, member_id)
    draft.remove(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        _complete_join_if_nobody_is_missing(draft)
    else:
        prepare_rebalance(draft, "the session of member %s ended", member_id)


def _complete_join_if_nobody_is_missing(draft: Draft) -> None:
    """Like `complete_join_if_all_joined`, but also in the first rebalance of an empty group (as Kafka does when a
    member's session ends).
    """
    if draft.group.state is GroupState.PREPARING_REBALANCE and draft.group.all_members_joined:
        complete_join(draft)


def _sync_time_over(draft: Draft) -> None:
    """Remove members that joined and never sent SyncGroup, since their partitions are not consumed, and rebalance."""
    group = draft.group
    late = sorted(group.pending_syncs)
    if not late or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return
    for member_id in late:
        draft.remove(member_id)
    prepare_rebalance(draft, "%d members did not send SyncGroup in time", len(late))


def _loaded(draft: Draft, _: Loaded) -> None:
    group = draft.group
    for member_id in group.members:
        draft.schedule_session(member_id)
    if len(group.members) > draft.settings.group_max_size:
        # The limit was lowered: a rebalance refuses the last members and lets all commit before.
        prepare_rebalance(draft, "the loaded group has %d members, more than allowed", len(group.members))


def _store_refused(draft: Draft, event: StoreRefused) -> None:
    """The assignment could not be stored: all members that wait for it receive the error and join again."""
    if draft.group.state is GroupState.COMPLETING_REBALANCE:
        prepare_rebalance(draft, "%s when storing the assignment", event.error.name, sync_error=event.error)


_DECIDERS: Final[Mapping[type, Callable[[Draft, Any], None]]] = {
    JoinGroup: _join,
    SyncGroup: _sync,
    Heartbeat: _heartbeat,
    LeaveGroup: _leave,
    TimerFired: _timer_fired,
    Loaded: _loaded,
    StoreRefused: _store_refused,
}
