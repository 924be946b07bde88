"""Transcripts of groups' lives, scenarios/*.txt (`transcript.py` says how to read and rewrite them).

The group is always `g`.

    settings NAME=NUMBER...
    join [client=C] [member=ID] [instance=I] [protocols=a,b:metadata] [type=T] [session=MS] [rebalance=MS]
         [v=API version]
    sync member=ID generation=N [instance=I] [type=T] [protocol=P] [assign=ID:work,...]
    heartbeat member=ID generation=N [instance=I]
    leave ID,@INSTANCE,ID@INSTANCE
    commit topic:partition:offset... [member=ID] [generation=N] [instance=I] [retention=MS] [metadata=TEXT] [v=9]
           [producer=ID]                                as part of the producer's transaction, until its marker comes
    marker ID commit|abort                              the producer's transaction ends
    fetch [topic:partition...] [stable=yes]             forget topic:partition... (OffsetDelete)
    delete | expire | topics-deleted T | refused ERROR | loaded
    advance MS                                          fires the timers that come due, one after the other
    show | reload                                       reload: forget everything, read the log

Requests are numbered in order: `#3 <- ...` answers the third. `<hostile>` is a long text with control characters.
"""

from collections.abc import Callable

import pytest

from barnabas.broker.coordinators.effects import Schedule
from barnabas.broker.coordinators.groups.changes import (
    CommittedOffset,
    GroupRecord,
    GroupTombstone,
    OffsetRecord,
    Record,
)
from barnabas.broker.coordinators.groups.events import (
    SESSION,
    CommitOffsets,
    DeleteGroup,
    DeleteGroupReply,
    DeleteOffsets,
    Effects,
    ExpireOffsets,
    ForgetTopics,
    GroupEvent,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Leaver,
    LeaveReply,
    Loaded,
    OffsetEvent,
    OffsetsReply,
    PartitionCommit,
    Reply,
    StoreRefused,
    SyncGroup,
    SyncReply,
)
from barnabas.broker.coordinators.groups.shard import GroupShard
from barnabas.wire.errors import ErrorCode
from tests.broker.coordinators.transcript import Transcript, scenarios

SCENARIOS = scenarios(__file__)
HOSTILE = "line\nERROR forged\x1b[31m\u202e" + "x" * 300


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path, machine_type):
    GroupTranscript(machine_type()).check(path)


class GroupTranscript(Transcript):
    """Turns commands into events and effects into lines."""

    def value(self, word):
        return word.replace("<hostile>", HOSTILE)

    def do_join(self, _, options):
        version = int(options.get("v", 9))
        member_id = options.get("member", "")
        fresh_id = "" if member_id else str(next(self.machine.ids))
        protocols = []
        for word in options.get("protocols", "range").split(","):
            name, _, metadata = word.partition(":")
            if name:
                protocols.append((name, metadata.encode()))
        event = JoinGroup(
            group_id="g",
            token=next(self.machine.tokens),
            member_id=member_id,
            group_instance_id=options.get("instance"),
            client_id=options.get("client", "c"),
            client_host="/127.0.0.1",
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(protocols),
            reason=options.get("reason", ""),
            fresh_id=fresh_id,
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
        )
        return self.run(event)

    def do_sync(self, _, options):
        assignments = [word.partition(":") for word in options.get("assign", "").split(",") if word]
        event = SyncGroup(
            group_id="g",
            token=next(self.machine.tokens),
            member_id=options["member"],
            group_instance_id=options.get("instance"),
            generation=int(options["generation"]),
            protocol_type=options.get("type"),
            protocol_name=options.get("protocol"),
            assignments=tuple((member_id, work.encode()) for member_id, _, work in assignments),
        )
        return self.run(event)

    def do_heartbeat(self, _, options):
        token = next(self.machine.tokens)
        return self.run(Heartbeat("g", token, options["member"], options.get("instance"), int(options["generation"])))

    def do_leave(self, plain, options):
        leavers = []
        for word in plain[0].split(","):
            member_id, at, instance = word.partition("@")
            leavers.append(Leaver(member_id, instance if at else None, options.get("reason", "")))
        return self.run(LeaveGroup("g", next(self.machine.tokens), tuple(leavers)))

    def do_commit(self, plain, options):
        topics: dict[str, list[PartitionCommit]] = {}
        for word in plain:
            topic, partition, offset = word.split(":")
            commit = PartitionCommit(int(partition), int(offset), 5, options.get("metadata", ""))
            topics.setdefault(topic, []).append(commit)
        error = ErrorCode.GROUP_ID_NOT_FOUND if int(options.get("v", 9)) >= 9 else ErrorCode.ILLEGAL_GENERATION
        event = CommitOffsets(
            group_id="g",
            token=next(self.machine.tokens),
            member_id=options.get("member", ""),
            group_instance_id=options.get("instance"),
            generation=int(options.get("generation", -1)),
            retention_ms=int(options.get("retention", -1)),
            topics=tuple((topic, b"T" * 16, tuple(commits)) for topic, commits in topics.items()),
            unknown_group_error=error,
            producer_id=int(options.get("producer", -1)),
            producer_epoch=0 if "producer" in options else -1,
        )
        return self.run(event)

    def do_marker(self, plain, _):
        self.machine.end_transaction(int(plain[0]), is_commit=plain[1] == "commit")
        return []

    def do_fetch(self, plain, options):
        topics: dict[str, list[int]] | None = {} if plain else None
        for word in plain:
            topic, partition = word.split(":")
            topics.setdefault(topic, []).append(int(partition))
        reply = self.machine.shard.offsets.fetch("g", topics, require_stable="stable" in options)
        return [
            f"{topic}-{offset.partition} {offset.error.name} {show_offset(offset.committed)}"
            for topic, offsets in reply.topics.items()
            for offset in offsets
        ]

    def do_forget(self, plain, _):
        topics: dict[str, list[int]] = {}
        for word in plain:
            topic, partition = word.split(":")
            topics.setdefault(topic, []).append(int(partition))
        asked = tuple((topic, tuple(partitions)) for topic, partitions in topics.items())
        return self.run(DeleteOffsets("g", next(self.machine.tokens), asked))

    def do_delete(self, _plain, _options):
        return self.run(DeleteGroup("g", next(self.machine.tokens)))

    def do_expire(self, _plain, _options):
        return self.run(ExpireOffsets("g"))

    def do_topics_deleted(self, plain, _):
        return self.run(ForgetTopics("g", frozenset(plain)))

    def do_refused(self, plain, _):
        return self.run(StoreRefused("g", ErrorCode[plain[0]]))

    def do_loaded(self, _plain, _options):
        return self.run(Loaded("g"))

    def do_advance(self, plain, _):
        end_ms = self.machine.now_ms + int(plain[0])
        lines = []
        while (key := self.machine.next_timer()) is not None and self.machine.timers[key] <= end_ms:
            started_ms = self.machine.now_ms
            effects = self.machine.fire(key)
            _, timer = key
            name = f"{timer.kind} {timer.member_id}".strip()
            lines.append(f"after {self.machine.now_ms - started_ms} ms: timer {name}")
            lines += self.show_effects(effects)
        self.machine.now_ms = end_ms
        return lines

    def do_show(self, _plain, _options):
        group = self.machine.shard.groups.get("g")
        if group is None:
            return ["no group"]
        lines = [
            f"{group.state.value} generation={group.generation} type={group.protocol_type}"
            f" protocol={group.protocol_name} leader={group.leader_id}"
        ]
        for member in group.members.values():
            waits = [
                name
                for name, ids in (("join", group.waiting_joins), ("sync", group.waiting_syncs))
                if member.member_id in ids
            ]
            offers = ",".join(name for name, _ in member.protocols)
            lines.append(
                f"  {member.member_id} instance={member.group_instance_id} offers={offers}"
                f" work={member.assignment.decode() or '-'} waits={','.join(waits) or '-'}"
            )
        lines += [f"  {member_id} has not joined yet" for member_id in sorted(group.pending_members)]
        return lines

    def do_reload(self, plain, options):
        self.machine.shard = self.machine.reloaded()
        self.machine.timers.clear()
        return self.do_show(plain, options)

    def run(self, event: GroupEvent | OffsetEvent) -> list[str]:
        return self.show_effects(self.machine.run(event))

    def show_effects(self, effects: Effects) -> list[str]:
        lines = ["# " + str(text) % tuple(arguments) for text, *arguments in effects.notes]
        lines += [f"log: {show_record(record)}" for record in GroupShard.records_of(effects.changes)]
        for timer in effects.timers:
            if isinstance(timer, Schedule) and timer.key.kind != SESSION:
                lines.append(f"timer {timer.key.kind} in {timer.delay_ms} ms")
        lines += [f"#{token} <- {show_reply(reply)}" for token, reply in effects.replies]
        return lines


def show_offset(committed: CommittedOffset | None) -> str:
    if committed is None:
        return "none"
    expiry = f" expires={committed.expire_at_ms}" if committed.expire_at_ms >= 0 else ""
    metadata = f" metadata={committed.metadata[:20]}" if committed.metadata else ""
    return f"offset={committed.offset} epoch={committed.leader_epoch}{metadata}{expiry}"


def show_record(record: Record) -> str:
    if isinstance(record, GroupRecord):
        members = " ".join(f"{member.member_id}={member.assignment.decode() or '-'}" for member in record.members)
        return (
            f"group generation={record.generation} type={record.protocol_type or '-'} protocol={record.protocol_name}"
            f" leader={record.leader_id} members: {members or 'none'}"
        )
    if isinstance(record, GroupTombstone):
        return "group deleted"
    if isinstance(record, OffsetRecord):
        return f"{record.topic}-{record.partition} {show_offset(record.committed)}"
    return f"{record.topic}-{record.partition} deleted"


def show_join(reply: JoinReply) -> str:
    if reply.error is not ErrorCode.NONE:
        return f"join {reply.error.name} member={reply.member_id or '-'}"
    members = " ".join(
        f"{member.member_id}:{member.metadata.decode()}" if member.metadata else member.member_id
        for member in reply.members
    )
    skip = " skip-assignment" if reply.skip_assignment else ""
    return (
        f"join member={reply.member_id} generation={reply.generation} type={reply.protocol_type}"
        f" protocol={reply.protocol_name} leader={reply.leader_id}{skip} members: {members or 'none'}"
    )


def show_sync(reply: SyncReply) -> str:
    if reply.error is not ErrorCode.NONE:
        return f"sync {reply.error.name}"
    return f"sync {reply.protocol_type}/{reply.protocol_name} work={reply.assignment.decode() or '-'}"


def show_leave(reply: LeaveReply) -> str:
    leavers = (
        f"{leaver.member_id}{'@' + leaver.group_instance_id if leaver.group_instance_id else ''} {leaver.error.name}"
        for leaver in reply.members
    )
    return "leave " + ", ".join(leavers)


def show_offsets(reply: OffsetsReply) -> str:
    if reply.error is not ErrorCode.NONE:
        return f"offsets {reply.error.name}"
    return "offsets " + ", ".join(
        f"{topic}-{partition} {error.name}" for topic, partitions in reply.topics for partition, error in partitions
    )


SHOW: dict[type, Callable[..., str]] = {
    JoinReply: show_join,
    SyncReply: show_sync,
    LeaveReply: show_leave,
    HeartbeatReply: lambda reply: f"heartbeat {reply.error.name}",
    OffsetsReply: show_offsets,
    DeleteGroupReply: lambda reply: f"delete {reply.error.name}",
}


def show_reply(reply: Reply) -> str:
    return SHOW[type(reply)](reply)
