"""The steps of a rebalance: gather the members, start a generation, spread the assignment.

Source: Kafka's GroupMetadataManager (prepareRebalance, completeClassicGroupJoin,
tryCompleteInitialRebalanceElseSchedule, propagateAssignment).
"""

from typing import Final

from barnabas.broker.coordinators.groups.changes import (
    DelayExtended,
    DelayOver,
    GenerationStarted,
    GroupRecord,
    LeaderElected,
    RebalancePrepared,
)
from barnabas.broker.coordinators.groups.classic.draft import Draft
from barnabas.broker.coordinators.groups.classic.state import Group, GroupState
from barnabas.broker.coordinators.groups.events import JOIN, NEWCOMERS, SYNC, JoinedMember, JoinReply, SyncReply
from barnabas.wire.errors import ErrorCode

GENERATION_MAX: Final = 2**31 - 1

NEWCOMER_DELAY_MAX_MS: Final = 1_000
"""A later rebalance is not put off longer than this, however many newcomers keep arriving."""

NOBODY_JOINED_MIN_MS: Final = 5_000
"""So long at least is waited again for static members of whom none joined. Their rebalance timeout is what they said,
which may be 0 or less: nothing but time would pass between one look and the next (Kafka looks without pause).
"""


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


def rebalance_or_complete_join(draft: Draft, reason: str, *arguments: object, newcomer: bool = False) -> None:
    """After the members changed: begin a rebalance, or end the join phase of the one under way if nobody is missing
    any more.
    """
    if draft.group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_all_joined(draft)
    else:
        prepare_rebalance(draft, reason, *arguments, newcomer=newcomer)


def prepare_rebalance(
    draft: Draft,
    reason: str,
    *arguments: object,
    newcomer: bool = False,
    sync_error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS,
) -> None:
    """Have every member join again. The first members of an empty group are given `group.initial.rebalance.delay.ms`
    to gather, later newcomers `barnabas.group.newcomer.delay.ms`. Who waits for an assignment gets `sync_error`
    instead.
    """
    group = draft.group
    is_initial = group.state is GroupState.EMPTY
    if group.state is GroupState.COMPLETING_REBALANCE:
        _answer_waiting_syncs(draft, sync_error)
    draft.cancel(SYNC)
    delay_ms = _delay_ms(draft, is_initial) if newcomer else 0
    delay_max_ms = group.rebalance_timeout_ms if is_initial else NEWCOMER_DELAY_MAX_MS
    draft.note(
        f"Preparing to rebalance group %s in state %s with old generation %d (reason: {reason})",
        group.group_id,
        group.state.value,
        group.generation,
        *arguments,
    )
    draft.change(RebalancePrepared(draft.now_ms, max(delay_max_ms - delay_ms, 0) if delay_ms > 0 else None))
    if delay_ms > 0:
        draft.schedule(NEWCOMERS, delay_ms)
    elif is_initial or draft.group.all_members_joined:
        complete_join(draft)
        return
    if not is_initial:
        draft.schedule(JOIN, draft.group.rebalance_timeout_ms)


def _delay_ms(draft: Draft, is_initial: bool) -> int:
    """How long newcomers are waited for after the first one, and again if more came in that time."""
    if is_initial:
        return draft.settings.group_initial_rebalance_delay_ms
    return min(draft.settings.barnabas_group_newcomer_delay_ms, NEWCOMER_DELAY_MAX_MS)


def complete_join_if_all_joined(draft: Draft) -> None:
    """End the join phase early, unless more newcomers are probably starting up. (The first rebalance of an empty group
    waits for them even when those who came are gone again, as in Kafka.)
    """
    group = draft.group
    is_put_off = group.is_put_off and (group.is_initial_rebalance or bool(group.members))
    if group.state is GroupState.PREPARING_REBALANCE and not is_put_off and group.all_members_joined:
        complete_join(draft)


def newcomers_time_over(draft: Draft) -> None:
    """Wait on while newcomers keep arriving. Then the first rebalance of an empty group ends, a later one as soon as
    all members have joined.
    """
    group = draft.group
    left_ms = group.delay_left_ms
    if left_ms is None:
        return
    if left_ms and group.new_member_added:
        delay_ms = _delay_ms(draft, group.is_initial_rebalance)
        draft.change(DelayExtended(max(left_ms - delay_ms, 0)))
        draft.schedule(NEWCOMERS, min(delay_ms, left_ms))
    elif group.is_initial_rebalance:
        complete_join(draft)
    else:
        draft.change(DelayOver())
        complete_join_if_all_joined(draft)


def join_time_over(draft: Draft) -> None:
    """The members had their rebalance timeout to come back."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.is_put_off:
            draft.change(DelayOver())
        complete_join(draft)


def complete_join(draft: Draft) -> None:
    """End the join phase: drop dynamic members that did not come, and start the next generation with those who did."""
    draft.cancel(JOIN)
    draft.cancel(NEWCOMERS)
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
        draft.schedule(JOIN, max(draft.group.rebalance_timeout_ms, NOBODY_JOINED_MIN_MS))


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
