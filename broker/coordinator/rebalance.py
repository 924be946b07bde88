"""The steps of a rebalance: gather the members, start a generation, spread the assignment.

Source: Kafka's GroupMetadataManager (prepareRebalance, completeClassicGroupJoin,
tryCompleteInitialRebalanceElseSchedule, propagateAssignment).
"""

from typing import Final

from barnabas.broker.coordinator.changes import (
    GenerationStarted,
    GroupRecord,
    InitialDelayExtended,
    LeaderElected,
    RebalancePrepared,
)
from barnabas.broker.coordinator.draft import Draft
from barnabas.broker.coordinator.events import JOIN, SYNC, JoinedMember, JoinReply, SyncReply
from barnabas.broker.coordinator.state import Group, GroupState
from barnabas.wire.errors import ErrorCode

GENERATION_MAX: Final = 2**31 - 1


def next_generation(generation: int) -> int:
    """The id of the generation that follows; after the largest comes 1 (Kafka would wrap to a negative id, which
    clients take for "none").
    """
    return 1 if generation >= GENERATION_MAX else generation + 1


def joined_members(group: Group) -> tuple[JoinedMember, ...]:
    """All members with their metadata for the chosen protocol, as the leader is told."""
    return tuple(
        JoinedMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name) or b"")
        for member in group.members.values()
    )


def rebalance_or_complete_join(draft: Draft, reason: str, *arguments: object) -> None:
    """After the members changed: begin a rebalance, or end the join phase of the one under way if nobody is missing
    any more.
    """
    if draft.group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_all_joined(draft)
    else:
        prepare_rebalance(draft, reason, *arguments)


def prepare_rebalance(
    draft: Draft, reason: str, *arguments: object, sync_error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS
) -> None:
    """Have every member join again. The first members of an empty group are given `group.initial.rebalance.delay.ms`
    to gather. Who waits for an assignment gets `sync_error` instead.
    """
    group = draft.group
    is_initial = group.state is GroupState.EMPTY
    if group.state is GroupState.COMPLETING_REBALANCE:
        _answer_waiting_syncs(draft, sync_error)
    draft.cancel(SYNC)
    delay_ms = draft.settings.group_initial_rebalance_delay_ms
    left_ms = max(group.rebalance_timeout_ms - delay_ms, 0) if is_initial else None
    draft.note(
        f"Preparing to rebalance group %s in state %s with old generation %d (reason: {reason})",
        group.group_id,
        group.state.value,
        group.generation,
        *arguments,
    )
    draft.change(RebalancePrepared(draft.now_ms, left_ms))
    if is_initial and delay_ms > 0:
        draft.schedule(JOIN, delay_ms)
    elif is_initial or draft.group.all_members_joined:
        complete_join(draft)
    else:
        draft.schedule(JOIN, draft.group.rebalance_timeout_ms)


def complete_join_if_all_joined(draft: Draft) -> None:
    """End the join phase early, unless it is the first one of an empty group: more members are probably starting up."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial_rebalance and group.all_members_joined:
        complete_join(draft)


def join_time_over(draft: Draft) -> None:
    """The join timer fired: extend the first rebalance while newcomers keep arriving, else end the join phase."""
    group = draft.group
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    left_ms = group.initial_delay_left_ms
    if left_ms and group.new_member_added:
        delay_ms = draft.settings.group_initial_rebalance_delay_ms
        draft.change(InitialDelayExtended(max(left_ms - delay_ms, 0)))
        draft.schedule(JOIN, min(delay_ms, left_ms))
    else:
        complete_join(draft)


def complete_join(draft: Draft) -> None:
    """End the join phase: drop dynamic members that did not come, and start the next generation with those who did."""
    draft.cancel(JOIN)
    group = draft.group
    absent = [
        member.member_id
        for member in group.members.values()
        if not member.is_static and member.member_id not in group.waiting_joins
    ]
    for member_id in absent:
        draft.remove(member_id)
    if absent:
        draft.note("Group %s removed %d dynamic members that did not join in time", group.group_id, len(absent))
    if not draft.group.members:
        _become_empty(draft)
    elif _elect_joined_leader(draft):
        _start_generation(draft)
    else:
        # Only static members are left and none came: their sessions decide who stays.
        draft.note("Group %s could not complete its rebalance: no member joined", group.group_id)
        draft.schedule(JOIN, draft.group.rebalance_timeout_ms)


def _elect_joined_leader(draft: Draft) -> bool:
    """Keep the leader if it has joined, else take the first member that has; False when none has."""
    group = draft.group
    if group.leader_id in group.waiting_joins:
        return True
    joined = next(iter(group.waiting_joins), None)
    if joined is None:
        return False
    draft.note("Group %s: leader %s did not join in time, %s leads now", group.group_id, group.leader_id, joined)
    draft.change(LeaderElected(joined))
    return True


def _become_empty(draft: Draft) -> None:
    group = draft.group
    generation = next_generation(group.generation)
    draft.store(GroupRecord(group.group_id, group.protocol_type or "", generation, None, None, draft.now_ms, ()))
    draft.note("Group %s with generation %d is now empty", group.group_id, generation)


def _start_generation(draft: Draft) -> None:
    group = draft.group
    waiting = dict(group.waiting_joins)
    draft.change(GenerationStarted(next_generation(group.generation), group.select_protocol(), draft.now_ms))
    group = draft.group
    for member_id in group.members:
        token = waiting.get(member_id)
        if token is not None:
            members = joined_members(group) if member_id == group.leader_id else ()
            draft.reply(token, current_generation_reply(group, member_id, members=members))
        draft.schedule_session(member_id)
    draft.schedule(SYNC, group.rebalance_timeout_ms)
    draft.note("Group %s formed generation %d with %d members", group.group_id, group.generation, len(group.members))


def current_generation_reply(
    group: Group,
    member_id: str,
    *,
    members: tuple[JoinedMember, ...] = (),
    leader_id: str | None = None,
    skip_assignment: bool = False,
) -> JoinReply:
    """Tell a member the generation it is in; `leader_id` where it shall not see the real one."""
    return JoinReply(
        ErrorCode.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        leader_id or group.leader_id or "",
        skip_assignment,
        members,
    )


def _answer_waiting_syncs(draft: Draft, error: ErrorCode) -> None:
    """Answer every parked SyncGroup with an error; whoever calls this also makes the change that forgets them.

    Sessions start anew: one that ended while its member was parked was let pass.
    """
    for member_id, token in draft.group.waiting_syncs.items():
        draft.reply(token, SyncReply(error))
        draft.schedule_session(member_id)


def spread_assignment(draft: Draft, assignments: dict[str, bytes]) -> None:
    """Store the leader's assignment and answer every parked SyncGroup with its part of it."""
    group = draft.group
    missing = sum(member_id not in assignments for member_id in group.members)
    if missing:
        draft.note(
            "Group %s generation %d: the leader assigned nothing to %d members",
            group.group_id,
            group.generation,
            missing,
        )
    for member_id, token in group.waiting_syncs.items():
        assignment = assignments.get(member_id, b"")
        draft.reply(token, SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment))
        draft.schedule_session(member_id)
    draft.store(group.to_record(assignments))
