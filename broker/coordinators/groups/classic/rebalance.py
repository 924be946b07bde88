"""The steps of a rebalance: wait for the members to join, start a generation, distribute the assignment.

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
"""The maximum delay of a later rebalance, however many new members keep arriving."""

NOBODY_JOINED_MIN_MS: Final = 5_000
"""The minimum time of another wait for static members of which none joined. Their rebalance timeout comes from the
client and may be 0 or less: then the group would be checked again without a pause (as Kafka does).
"""


def next_generation(generation: int) -> int:
    """The id of the following generation; after the largest comes 1 (Kafka would wrap to a negative id, which clients
    interpret as "none").
    """
    return 1 if generation >= GENERATION_MAX else generation + 1


def joined_members(group: Group) -> tuple[JoinedMember, ...]:
    """All members with their metadata for the chosen protocol, for the leader's response."""
    return tuple(
        JoinedMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name) or b"")
        for member in group.members.values()
    )


def rebalance_or_complete_join(draft: Draft, reason: str, *arguments: object, newcomer: bool = False) -> None:
    """After a change of members: begin a rebalance, or end the present join phase if all members have joined."""
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
    """Start a rebalance, in which every member has to join again. It is delayed for further new members: by
    `group.initial.rebalance.delay.ms` in an empty group, else by `barnabas.group.newcomer.delay.ms`. Members that wait
    for an assignment receive `sync_error` instead.
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
    """The delay of a rebalance after the first new member, and again if more arrive in that time."""
    if is_initial:
        return draft.settings.group_initial_rebalance_delay_ms
    return min(draft.settings.barnabas_group_newcomer_delay_ms, NEWCOMER_DELAY_MAX_MS)


def complete_join_if_all_joined(draft: Draft) -> None:
    """End the join phase early, unless the delay for new members is running. (The first rebalance of an empty group
    waits for its delay even when all members have gone again, as in Kafka.)
    """
    group = draft.group
    is_put_off = group.is_put_off and (group.is_initial_rebalance or bool(group.members))
    if group.state is GroupState.PREPARING_REBALANCE and not is_put_off and group.all_members_joined:
        complete_join(draft)


def newcomers_time_over(draft: Draft) -> None:
    """Extend the delay while new members keep arriving. Otherwise the first rebalance of an empty group ends, a later
    one as soon as all members have joined.
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
    """The rebalance timeout is over."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.is_put_off:
            draft.change(DelayOver())
        complete_join(draft)


def complete_join(draft: Draft) -> None:
    """End the join phase: remove dynamic members that have not joined, and start the next generation
    with the others."""
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
        # Only static members are left and none joined: their sessions decide which of them stay.
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
    """The response to a member's join in the current generation; `leader_id` replaces the real leader's id."""
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
    """Answer every waiting SyncGroup with an error; the caller also makes the change that removes them. The sessions
    are restarted, since they were not enforced while the requests waited.
    """
    for member_id, token in draft.group.waiting_syncs.items():
        draft.reply(token, SyncReply(error))
        draft.schedule_session(member_id)


def spread_assignment(draft: Draft, assignments: dict[str, bytes]) -> None:
    """Store the leader's assignment and answer every waiting SyncGroup with its part of it."""
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
