"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, OffsetDelete, and what describes groups."""

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.differential.run import Build, Run, Side, versions_of
from compat_tests.differential.values import UNKNOWN_TOPIC_ID

JOIN_GROUP, LEAVE_GROUP, OFFSET_FETCH = 11, 13, 9
NOBODY = "nobody"


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 0."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", 0)


def joining(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    kind: str = "consumer",
    protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 10_000,
    reason: str | None = None,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        reason=reason,
    )


def join(run: Run, group: str, version: int, name: str = "m", **options: Any) -> None:
    """Join as the one new member; its id is kept under `name`."""
    run.ask(joining(group, **options), version)
    if run.kafka.last is not None and run.kafka.last.error_code == 79:
        remember(run, name)
        run.ask(lambda side: joining(group, side.ids[name], **options), version)
    remember(run, name)


def remember(run: Run, name: str) -> None:
    for side in run.sides:
        side.ids[name] = side.last.member_id if side.last is not None else NOBODY


def syncing(
    group: str,
    generation: int = 1,
    name: str | None = "m",
    *,
    assigned: tuple[str, ...] = ("m",),
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
) -> Build:
    def build(side: Side) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=side.ids.get(name, NOBODY) if name else "",
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=side.ids.get(each, each), assignment=f"for {each}".encode())
                for each in assigned
            ],
        )

    return build


def beating(group: str, generation: int = 1, name: str | None = "m", instance: str | None = None) -> Build:
    return lambda side: HeartbeatRequest(
        group_id=group,
        generation_id=generation,
        member_id=side.ids.get(name, NOBODY) if name else "",
        group_instance_id=instance,
    )


def leaving(group: str, *members: tuple[str | None, str | None], version: int) -> Build:
    def build(side: Side) -> LeaveGroupRequest:
        identities = [
            MemberIdentity(member_id=side.ids.get(name, NOBODY) if name else "", group_instance_id=instance)
            for name, instance in members
        ]
        if version < 3:
            return LeaveGroupRequest(group_id=group, member_id=identities[0].member_id)
        return LeaveGroupRequest(group_id=group, members=identities)

    return build


def committing(
    group: str,
    *offsets: tuple[str, int, int],
    generation: int = -1,
    name: str | None = None,
    instance: str | None = None,
    metadata: str | None = "",
    epoch: int = -1,
    retention_ms: int = -1,
) -> Build:
    def build(side: Side) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=group,
            retention_time_ms=retention_ms,
            generation_id_or_member_epoch=generation,
            member_id=side.ids.get(name, NOBODY) if name else "",
            group_instance_id=instance,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=side.ids.get(topic, UNKNOWN_TOPIC_ID),
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            committed_metadata=metadata,
                        )
                    ],
                )
                for topic, partition, offset in offsets
            ],
        )

    return build


def fetching(
    group: str,
    version: int,
    *topics: tuple[str, list[int]],
    everything: bool = False,
    stable: bool = False,
    member: tuple[str | None, int] = (None, -1),
) -> Callable[[Side], OffsetFetchRequest]:
    def build(side: Side) -> OffsetFetchRequest:
        if version < 8:
            named = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics]
            return OffsetFetchRequest(group_id=group, topics=None if everything else named)
        asked = [
            OffsetFetchRequestTopics(
                name=name, topic_id=side.ids.get(name, UNKNOWN_TOPIC_ID), partition_indexes=indexes
            )
            for name, indexes in topics
        ]
        one = OffsetFetchRequestGroup(
            group_id=group, topics=None if everything else asked, member_id=member[0], member_epoch=member[1]
        )
        return OffsetFetchRequest(groups=[one], require_stable=stable)

    return build


def look(run: Run, group: str) -> None:
    """Describe the group."""
    run.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), 6)


def group_life(run: Run) -> None:
    """One member at every version: join, sync, heartbeat, commit, fetch, leave, delete."""
    topic = run.create_topic()
    for version in versions_of(JOIN_GROUP):
        group = run.fresh(f"v{version}")
        sync, beat, leave, fetch = min(version, 5), min(version, 4), min(version, 5), max(1, min(version, 9))
        look(run, group)
        join(run, group, version)
        look(run, group)
        run.ask(beating(group), beat)
        run.ask(syncing(group, 0), sync)
        run.ask(syncing(group, 2), sync)
        run.ask(syncing(group, name="other"), sync)
        run.ask(syncing(group), sync)
        run.ask(syncing(group), sync)
        look(run, group)
        for generation, name in ((1, "m"), (0, "m"), (2, "m"), (-1, "m"), (1, "other"), (1, None)):
            run.ask(beating(group, generation, name), beat)
            for at in (version, version + 1):
                run.ask(committing(group, (topic, 0, 5), generation=generation, name=name), max(2, at))
        run.ask(committing(group, (topic, 0, 6)), max(2, version))
        run.ask(fetching(group, fetch, (topic, [0])), fetch)
        run.ask(DeleteGroupsRequest(groups_names=[group]), min(version, 2))
        run.ask(leaving(group, ("other", None), version=leave), leave)
        run.ask(leaving(group, ("m", None), version=leave), leave)
        run.ask(leaving(group, ("m", None), version=leave), leave)
        look(run, group)
        run.ask(beating(group), beat)
        run.ask(fetching(group, fetch, (topic, [0])), fetch)
        run.ask(DeleteGroupsRequest(groups_names=[group, "no-such", group]), min(version, 2))
        look(run, group)


def join_refusals(run: Run) -> None:
    for version in (0, 1, 3, 4, 5, 6, 7, 9):
        group = run.fresh(f"v{version}")
        for request in (
            joining(""),
            joining(group, NOBODY),
            joining(group, session_timeout_ms=0),
            joining(group, session_timeout_ms=5999),
            joining(group, session_timeout_ms=1_800_001),
            joining(group, session_timeout_ms=-1),
            joining(group, session_timeout_ms=0, protocols=()),
            joining(group, kind=""),
            joining(group, protocols=()),
            joining("", session_timeout_ms=0),
        ):
            run.ask(request, version)
        look(run, group)
        join(run, group, version)
        run.ask(syncing(group), min(version, 5))
        for request in (
            joining(group, kind="connect"),
            joining(group, protocols=(("other", b""),)),
            joining(group, NOBODY),
        ):
            run.ask(request, version)
        look(run, group)


def two_members(run: Run) -> None:
    """A second member comes and goes: who waits, who is told to join again."""
    for version in (0, 2, 4, 5, 7, 9):
        group = run.fresh(f"v{version}")
        sync, beat, leave = min(version, 5), min(version, 4), min(version, 5)
        two = (("range", subscription("t")), ("sticky", subscription("t", "u")))
        join(run, group, version, protocols=two)
        run.ask(syncing(group), sync)
        newcomer = joining(group, protocols=(("sticky", subscription("u")),))
        if version >= 4:
            run.ask(newcomer, version, connection="second")
            remember(run, "n")
        waiting = run.send(
            lambda side, v=version, r=newcomer: (
                r  # type: ignore[misc]
                if v < 4
                else joining(r.group_id, side.ids["n"], protocols=(("sticky", subscription("u")),))
            ),
            version,
            connection="second",
        )
        run.settle(beating(group), beat, 27)
        run.ask(syncing(group), sync)
        look(run, group)
        again = run.send(lambda side, g=group, p=two: joining(g, side.ids["m"], protocols=p), version)  # type: ignore[misc]
        run.receive(again)
        run.receive(waiting, connection="second")
        remember(run, "n")
        follower = run.send(syncing(group, 2, "n", assigned=(), protocol="sticky"), sync, connection="second")
        run.ask(syncing(group, 2, assigned=("m", "n"), protocol="sticky"), sync)
        run.receive(follower, connection="second")
        look(run, group)
        run.ask(beating(group, 2), beat)
        run.ask(leaving(group, ("n", None), version=leave), leave)
        run.ask(beating(group, 2), beat)
        run.ask(leaving(group, ("m", None), version=leave), leave)
        look(run, group)


def static_members(run: Run) -> None:
    for version in (5, 6, 7, 8, 9):
        group = run.fresh(f"v{version}")
        sync, beat, leave = min(version, 5), min(version, 4), min(version, 5)
        join(run, group, version, instance="i")
        run.ask(syncing(group, instance="i"), sync)
        run.ask(beating(group, instance="i"), beat)
        run.ask(beating(group, instance="unknown"), beat)
        run.ask(beating(group, name="other", instance="i"), beat)
        run.ask(joining(group, NOBODY, instance="i"), version)
        run.ask(joining(group, NOBODY, instance="j"), version)
        join(run, group, version, "m2", instance="i")
        run.ask(beating(group, instance="i"), beat)
        run.ask(beating(group, 1, "m2", instance="i"), beat)
        run.ask(syncing(group, 1, "m", instance="i"), sync)
        run.ask(syncing(group, 1, "m2", instance="i", assigned=()), sync)
        run.ask(committing(group, ("t", 0, 1), generation=1, name="m", instance="i"), 8)
        run.ask(committing(group, ("t", 0, 1), generation=1, name="m2", instance="j"), 8)
        look(run, group)
        run.ask(leaving(group, ("m", "i"), version=leave), leave)
        run.ask(leaving(group, (None, "j"), ("other", None), version=leave), leave)
        run.ask(leaving(group, (None, "i"), version=leave), leave)
        look(run, group)
    run.ask(joining(run.fresh("long"), instance="x" * 250), 6)
    run.ask(joining(run.fresh("bad"), instance="a b"), 6)
    run.ask(joining(run.fresh("empty"), instance=""), 6)


def unknown_groups(run: Run) -> None:
    for group in (run.fresh("none"), "", "ü", "x" * 300):
        for generation in (1, 0, -1):
            run.sweep(beating(group, generation), beating(group, generation, None))
            run.sweep(syncing(group, generation), syncing(group, generation, None))
        run.sweep(syncing(group, kind=None), syncing(group, protocol=None), versions=(5,))
        run.sweep(DescribeGroupsRequest(groups=[group]), DescribeGroupsRequest(groups=[group, group]))
        run.sweep(DeleteGroupsRequest(groups_names=[group]), DeleteGroupsRequest(groups_names=[group, group]))
        for version in versions_of(LEAVE_GROUP):
            run.ask(leaving(group, ("m", None), version=version), version)
            run.ask(leaving(group, (None, None), version=version), version)
            if version >= 3:
                run.ask(leaving(group, version=version), version)
                run.ask(leaving(group, ("m", "i"), (None, "i"), ("m", None), version=version), version)
    run.sweep(DescribeGroupsRequest(), DeleteGroupsRequest())
    run.sweep(DescribeGroupsRequest(groups=[run.fresh("none")], include_authorized_operations=True))


def offsets(run: Run) -> None:
    """Offsets committed without members: borders of every field, unknown topics, metadata that is too long."""
    topic = run.create_topic(partitions=2)
    group = run.fresh()
    for offset in (0, 1, 2**62, -1, -2):
        run.sweep(committing(group, (topic, 0, offset)))
    for metadata in (None, "", "ü", "x" * 4096, "x" * 4097):
        run.sweep(committing(group, (topic, 1, 7), metadata=metadata))
        run.ask(fetching(group, 8, (topic, [0, 1])), 8)
    for retention_ms in (-(2**63), -2, 0, 1, 2**63 - 1):
        run.sweep(committing(group, (topic, 0, 8), retention_ms=retention_ms), versions=(2, 3, 4))
        run.ask(fetching(group, 8, (topic, [0, 1])), 8)
    for epoch in (-1, 0, 5, -2):
        run.sweep(committing(group, (topic, 0, 9), epoch=epoch), versions=(6, 9))
        run.ask(fetching(group, 8, (topic, [0, 1])), 8)
    run.sweep(
        committing(group, ("no-such", 0, 1)),
        committing(group, ("a b", 0, 1)),
        committing(group, ("", 0, 1)),
        committing(group, (topic, 2, 1)),
        committing(group, (topic, -1, 1)),
        committing(group, (topic, 0, 3), ("no-such", 0, 1), (topic, 1, 4)),
        committing(group, (topic, 0, 3), (topic, 0, 4)),
        committing(group),
        committing("", (topic, 0, 1)),
        committing(group, (topic, 0, 1), generation=0),
        committing(group, (topic, 0, 1), generation=5),
        committing(group, (topic, 0, 1), name="m"),
        committing(run.fresh("other"), (topic, 0, 1), generation=1, name="m"),
    )
    fetch_offsets(run, topic, group)


def fetch_offsets(run: Run, topic: str, group: str) -> None:
    """Fetch the group's committed offsets of two partitions, at every version; topics and groups that do not exist."""
    for version in versions_of(OFFSET_FETCH):
        questions: tuple[list[tuple[str, list[int]]], ...] = (
            [(topic, [0])], [(topic, [0, 1, 2, -1])], [("no-such", [0])], [(topic, [0, 0])], [(topic, [])], [],
            [(topic, [1]), ("no-such", [0]), (topic, [0])], [("a b", [0]), ("", [0])],
        )  # fmt: skip
        for asked in questions:
            for of in (group, run.fresh("none"), ""):
                run.ask(fetching(of, version, *asked), version)
        if version >= 2:
            for of in (group, run.fresh("none"), ""):
                run.ask(fetching(of, version, everything=True), version)
    for version in (8, 9, 10):
        questions_of_groups = (
            fetching(group, version, everything=True),
            fetching(run.fresh("none"), version, (topic, [0])),
            fetching(group, version, (topic, [0])),
            fetching(group, version, ("no-such", [0, 1]), (topic, [0]), ("no-such", [2])),
        )

        def several(side: Side, questions: Iterable[Callable[[Side], OffsetFetchRequest]]) -> OffsetFetchRequest:
            return OffsetFetchRequest(groups=[group for build in questions for group in build(side).groups])

        run.ask(partial(several, questions=questions_of_groups), version)
        run.ask(OffsetFetchRequest(), version)
        run.ask(fetching(group, version, (topic, [0]), stable=True), version)
    for version in (9, 10):
        for member in (("x", 0), ("x", 5), (None, 3), ("", -1)):
            run.ask(fetching(group, version, (topic, [0]), member=member), version)


def offsets_of_an_earlier_topic(run: Run) -> None:
    """A topic that is deleted and made anew has another id, and none of the offsets."""
    topic, group = run.create_topic(), run.fresh()
    run.ask(committing(group, (topic, 0, 5)), 10)
    earlier = [side.topic_id(topic) for side in run.sides]
    run.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 5)
    run.wait_gone(topic)
    run.settle_with(
        fetching(group, 8, (topic, [0])),
        8,
        lambda answer: answer.groups[0].topics[0].partitions[0].committed_offset < 0,
    )
    assert run.create_topic() == topic

    def of_earlier(build: Callable[[Side], Any]) -> Callable[[Side], Any]:
        def asking(side: Side) -> Any:
            later, side.ids[topic] = side.ids[topic], earlier[run.sides.index(side)]
            try:
                return build(side)
            finally:
                side.ids[topic] = later

        return asking

    for build in (fetching(group, 10, (topic, [0])), fetching(group, 10, everything=True)):
        run.ask(build, 10)
        run.ask(of_earlier(build), 10)
    run.ask(of_earlier(committing(group, (topic, 0, 6))), 10)
    run.ask(fetching(group, 10, (topic, [0])), 10)
    run.ask(committing(group, (topic, 0, 7)), 9)
    for build in (fetching(group, 10, (topic, [0])), fetching(group, 10, everything=True)):
        run.ask(build, 10)
        run.ask(of_earlier(build), 10)


def offset_delete(run: Run) -> None:
    topic, other = run.create_topic(partitions=2), run.create_topic("o")
    group = run.fresh()

    def deleting(of: str, *topics: tuple[str, list[int]]) -> OffsetDeleteRequest:
        return OffsetDeleteRequest(
            group_id=of,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for name, indexes in topics
            ],
        )

    for of in (group, ""):
        run.ask(deleting(of, (topic, [0])), 0)
        run.ask(deleting(of), 0)
    run.ask(committing(group, (topic, 0, 5), (topic, 1, 6), (other, 0, 7)), 8)
    run.ask(deleting(group, (topic, [0]), ("no-such", [0]), (other, [5])), 0)
    run.ask(deleting(group, (topic, [0, 0])), 0)
    run.ask(deleting(group, (topic, [])), 0)
    run.ask(fetching(group, 8, everything=True), 8)
    join(run, group, 5, protocols=(("range", subscription(topic)),))
    run.ask(deleting(group, (topic, [1]), (other, [0])), 0)
    run.ask(syncing(group), 4)
    run.ask(deleting(group, (topic, [1]), (other, [0])), 0)
    run.ask(fetching(group, 8, everything=True), 8)
    foreign = run.fresh("connect")
    join(run, foreign, 5, kind="connect", protocols=(("x", b""),))
    run.ask(committing(foreign, (topic, 0, 5)), 8)
    run.ask(deleting(foreign, (topic, [0])), 0)


def list_groups(run: Run) -> None:
    run.ask(committing(run.fresh("simple"), ("no-such", 0, 1)), 8)
    join(run, run.fresh("joined"), 5)
    run.sweep(ListGroupsRequest())
    for states in (
        ["Stable"],
        ["Empty", "Dead"],
        ["CompletingRebalance"],
        ["stable"],
        ["nonsense"],
        [""],
        ["x", "Empty"],
    ):
        run.sweep(ListGroupsRequest(states_filter=states), versions=(4, 5))
    for types in (["classic"], ["consumer"], ["CLASSIC"], ["nonsense"], [""], ["share", "classic"]):
        run.sweep(ListGroupsRequest(types_filter=types), versions=(5,))
    run.sweep(ListGroupsRequest(types_filter=["classic"], states_filter=["Empty"]), versions=(5,))


SCENARIOS = (
    group_life,
    join_refusals,
    two_members,
    static_members,
    unknown_groups,
    offsets,
    offsets_of_an_earlier_topic,
    offset_delete,
    list_groups,
)
