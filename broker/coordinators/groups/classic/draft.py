"""The group in the course of a decision, and the effects of the decision so far.

A decision is a chain of steps, each of which depends on the ones before (the last member leaves, so the join phase
ends, so the group is empty). A draft holds the group with the changes so far, in a copy made at the first change; the
original group stays as it is.
"""

from barnabas.broker.coordinators.effects import Cancel, Schedule, Token, printable
from barnabas.broker.coordinators.groups.changes import GroupChange, GroupRecord, MemberRemoved
from barnabas.broker.coordinators.groups.classic.state import TRANSITIONS, Group, GroupState, apply
from barnabas.broker.coordinators.groups.events import (
    SESSION,
    Effects,
    JoinReply,
    Reply,
    SyncReply,
    TimerKey,
)
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode


class Draft:
    """The group with its changes, and the effects that produce them; lives for one decision."""

    __slots__ = ("_copied", "_group", "effects", "group_id", "now_ms", "settings")

    def __init__(self, group: Group | None, group_id: str, now_ms: int, settings: GroupSettings) -> None:
        self._group = group
        self._copied = False
        self.group_id = group_id
        self.now_ms = now_ms
        self.settings = settings
        self.effects = Effects()

    @property
    def group(self) -> Group:
        """The group with the changes so far; read only."""
        assert self._group is not None, self.group_id
        return self._group

    @property
    def exists(self) -> bool:
        return self._group is not None

    def change(self, change: GroupChange) -> None:
        if not self._copied and self._group is not None:
            self._group = self._group.copy()
        self._copied = True
        self._group = apply(self._group, change)
        self.effects.changes.append(change)

    def store(self, record: GroupRecord) -> None:
        """Apply a record, which is then written to the log."""
        if self._group is not None:
            state = GroupState.STABLE if record.members else GroupState.EMPTY
            assert state is self._group.state or state in TRANSITIONS[self._group.state], (self._group.state, record)
        self.change(record._replace(state_since_ms=self.now_ms))

    def reply(self, token: Token, reply: Reply) -> None:
        self.effects.replies.append((token, reply))

    def schedule(self, kind: str, delay_ms: int) -> None:
        self.effects.timers.append(Schedule(TimerKey(kind), delay_ms))

    def cancel(self, kind: str) -> None:
        self.effects.timers.append(Cancel(TimerKey(kind)))

    def schedule_session(self, member_id: str, delay_ms: int | None = None) -> None:
        """Restart the member's session, by default with its session timeout."""
        if delay_ms is None:
            delay_ms = self.group.members[member_id].session_timeout_ms
        self.effects.timers.append(Schedule(TimerKey(SESSION, member_id), delay_ms))

    def cancel_session(self, member_id: str) -> None:
        self.effects.timers.append(Cancel(TimerKey(SESSION, member_id)))

    def note(self, text: str, *arguments: object) -> None:
        """Add a log line; arguments that are text come from clients and are escaped."""
        shown = (printable(argument) if isinstance(argument, str) else argument for argument in arguments)
        self.effects.notes.append((text, *shown))

    def answer_waiting(self, member_id: str, error: ErrorCode) -> None:
        """Answer the member's waiting requests with an error; the caller also makes the change that removes them."""
        token = self.group.waiting_joins.get(member_id)
        if token is not None:
            shown_id = member_id if error is ErrorCode.FENCED_INSTANCE_ID else ""
            self.reply(token, JoinReply(error, shown_id))
        token = self.group.waiting_syncs.get(member_id)
        if token is not None:
            self.reply(token, SyncReply(error))

    def remove(self, member_id: str) -> None:
        """Remove a member, or an id that was not used yet. Its waiting requests are answered: a live client then joins
        as a new member.
        """
        self.answer_waiting(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.cancel_session(member_id)
        self.change(MemberRemoved(member_id))


def member_error(group: Group, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """The error of a request by this member, NONE if its identity is valid (ClassicGroup.validateMember)."""
    if group_instance_id is not None:
        holder = group.static_members.get(group_instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
