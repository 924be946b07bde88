"""The functions of `kcl fake` besides faults (`rules.py`): calls of methods of kfake's Cluster, and the wait for a
group. Names, signatures and responses are Go's, as `kcl fake control` prints and reads them.

Arguments are texts: taken literally if a method expects a text or a topic's id, else parsed as JSON. Each method calls
the same functions as tests in Python; the table at the end lists them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from barnabas.broker.client.group import describe_assignment
from barnabas.broker.coordinators.groups.classic.subscriptions import parse_topics
from barnabas.testing.contents.group import STATES, check_group_may_be
from barnabas.testing.control.fields import TIMEOUT_MS_MAX, Kind, Refused
from barnabas.testing.waiting.conditions import wait_until
from barnabas.testing.waiting.timeouts import TIMEOUT_S, with_timeout
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.broker.cluster.metadata import TopicMetadata
    from barnabas.broker.coordinators.groups.changes import CommittedOffset, Member
    from barnabas.testing.brokers.broker import Broker
    from barnabas.testing.brokers.cluster import Cluster
    from barnabas.testing.control.actions import Asked
    from barnabas.testing.control.answers import Json
    from barnabas.testing.control.served import Served
    from barnabas.testing.waiting.conditions import Listeners

T = TypeVar("T")

_ALL: Final = -1
"""The offset for deleting all records."""

_NOBODY: Final = -1
"""The leader of a partition that does not exist."""

_NO_TIMESTAMP: Final = -1
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, after which Go parses no time."""


# --- methods --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Method:
    """A method: its parameters and results as written in Go, and its function for a broker or a cluster."""

    signature: str
    call: Callable[..., Any]

    @property
    def parameters(self) -> list[str]:
        """The types of its parameters."""
        inside = self.signature[1 : self.signature.index(")")]
        return inside.split(", ") if inside else []


def methods(asked: Asked) -> Json:
    return {"methods": [{"name": name, "signature": method.signature} for name, method in sorted(_METHODS.items())]}


def call(asked: Asked) -> Json:
    name, texts = asked.path["method"], asked.arguments.get("args", [])
    method = _METHODS.get(name)
    if method is None:
        raise Refused(404, _no_method(name), is_usage=True)
    if len(texts) != len(method.parameters):
        raise Refused(400, f"{name}{method.signature} has {len(method.parameters)} arguments, not {len(texts)}")
    arguments = [_argument(name, kind, text) for kind, text in zip(method.parameters, texts, strict=True)]
    return {"result": method.call(asked.served, *arguments)}


def _no_method(name: str) -> str:
    if name in _INSTEAD:
        return f"{name} does not exist here: {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, _METHODS, 1)
    return f"there is no method {name[:100]!r}: {f'did you mean {near[0]}?' if near else 'GET methods lists them'}"


def _argument(method: str, kind: str, text: str) -> Any:
    try:
        return _PARAMETERS[kind](text)
    except (ValueError, RecursionError):
        raise Refused(400, f"an argument of {method} is to be {_IN_WORDS[kind]} ({kind}), not {text[:100]!r}") from None


def _number(bits: int) -> Callable[[str], int]:
    def of_text(text: str) -> int:
        value = json.loads(text)
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError
        return value

    return of_text


def _texts_by_name(text: str) -> dict[str, str]:
    value = json.loads(text)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return value


_PARAMETERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "int": _number(64),
    "int32": _number(32),
    "int64": _number(64),
    "map[string]string": _texts_by_name,
    "[16]uint8": lambda text: TopicId(UUID(text).bytes),
}
_IN_WORDS: Final = {
    "int": "a whole number",
    "int32": "a whole number",
    "int64": "a whole number",
    "map[string]string": "an object of texts",
    "[16]uint8": "a topic's id",
}


# --- their functions ------------------------------------------------------------------------------


def _create_topic(served: Served, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
    served.owner.create_topic(topic, partitions if partitions > 0 else None, configs=configs)


def _delete_topic(served: Served, topic: str) -> None:
    served.owner.delete_topic(topic)


def _delete_records(served: Served, topic: str, partition: int, offset: int) -> None:
    served.owner.topic(topic).delete_records(partition=partition, offset=None if offset == _ALL else offset)


def _apply_retention(served: Served) -> None:
    for topic in served.owner.topic_names():
        served.owner.faults.age_records(topic, 0)


def _move_topic_partition(served: Served, topic: str, partition: int, node: int) -> None:
    served.owner.faults.move_leader(topic, partition, to=node)


def _shuffle_partition_leaders(served: Served) -> None:
    _elect_all(served, are_internal=False)


def _rehash_coordinators(served: Served) -> None:
    """Coordinators are the leaders of the internal topics' partitions."""
    _elect_all(served, are_internal=True)


def _elect_all(served: Served, *, are_internal: bool) -> None:
    """Elect another leader for each partition, or the same one in a new epoch if no other can lead."""

    def find(owner: Broker | Cluster) -> set[tuple[str, int]]:
        topics = (topic for server in owner.live_servers() for topic in server.metadata.topics())
        return {(each.name, index) for each in topics if each.is_internal == are_internal for index in each.partitions}

    faults = served.owner.faults
    for topic, partition in sorted(_seen(served, find)):
        try:
            faults.move_leader(topic, partition)
        except ApiError as error:
            if error.error is not ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
                raise
            faults.raise_leader_epoch(topic, partition)


def _listen_addrs(served: Served) -> list[str]:
    return served.owner.bootstrap_servers.split(",")


def _leader_for(served: Served, topic: str, partition: int) -> int:
    known = _seen(served, lambda owner: _topic(owner, topic))
    return _NOBODY if known is None or partition not in known.partitions else served.owner.leader(topic, partition)


def _coordinator_for(served: Served, group: str) -> int:
    return served.owner.coordinator(group=group)


def _seen(served: Served, find: Callable[[Broker | Cluster], T]) -> T:
    """The result of a function on the event loop of the brokers."""

    async def see() -> T:
        return find(served.owner)

    return served.owner.call(see())


def _there(found: T | None, what: str) -> T:
    if found is None:
        raise Refused(404, f"there is no {what}")
    return found


# --- topics ---------------------------------------------------------------------------------------


def _topic(owner: Broker | Cluster, name: str) -> TopicMetadata | None:
    try:
        return owner._known_topic(name)
    except ApiError:
        return None


def _topic_info(served: Served, name: str) -> Json:
    return _there(_seen(served, lambda owner: _topic_info_of(owner, name)), f"topic {name}")


def _topic_id_info(served: Served, topic_id: TopicId) -> Json:
    def find(owner: Broker | Cluster) -> Json | None:
        names = (server.metadata.topic_name(topic_id) for server in owner.live_servers())
        return next((_topic_info_of(owner, name) for name in names if name is not None), None)

    return _there(_seen(served, find), f"topic with the id {topic_id.hex()}")


def _topic_info_of(owner: Broker | Cluster, name: str) -> Json | None:
    topic = _topic(owner, name)
    if topic is None:
        return None
    return {
        "Topic": name,
        "TopicID": topic.topic_id.hex(),
        "NumReplicas": max(len(each.replicas) for each in topic.partitions.values()),
        "Configs": dict(owner.live_servers()[0].configs.overrides("topics", name)),
    }


def _partition_info(served: Served, topic: str, partition: int) -> Json:
    known = _seen(served, lambda owner: _topic(owner, topic))
    if known is None or partition not in known.partitions:
        raise Refused(404, f"there is no partition {topic}-{partition}")
    return _partition_info_of(served, topic, partition)


def _partition_infos(served: Served, topic: str) -> list[Json]:
    known = _seen(served, lambda owner: _topic(owner, topic))
    return [] if known is None else [_partition_info_of(served, topic, index) for index in sorted(known.partitions)]


def _partition_info_of(served: Served, topic: str, partition: int) -> Json:
    async def find() -> tuple[Json, Callable[[], Any]]:
        led = await served.owner._leading(topic, partition)
        log = led.partition.log
        found = {
            "Partition": partition,
            "HighWatermark": log.high_watermark,
            "LastStableOffset": log.last_stable_offset,
            "LogStartOffset": log.log_start_offset,
            "Epoch": led.partition.state.leader_epoch,
            "NumBytes": log.size_in_bytes,
            "Leader": led.server.node_id,
        }
        return found, log.timestamp_lookup().largest

    found, largest = served.owner.call(find())
    last = largest()  # may read from the disk, so it belongs into this thread
    return {**found, "MaxTimestamp": _NO_TIMESTAMP if last is None else last.timestamp}


# --- groups ---------------------------------------------------------------------------------------


def _group_info(served: Served, group: str) -> Json:
    owner = served.owner

    async def find() -> Json | None:
        await owner._eventually(lambda: owner._coordinating(group), f"no broker coordinates {group}")
        return _group_info_of(owner, group)

    return _there(owner.call(find()), f"group {group}")


def _wait_group_stable(served: Served, group: str, members: int) -> Json:
    check_group_may_be("Stable", None if members < 0 else members)

    def is_stable(info: Json) -> bool:
        return info["State"] == "Stable" and (members < 0 or len(info["Members"]) == members)

    return _wait_group(served, group, is_stable, TIMEOUT_MS_MAX / 1000)  # the request ends before


def wait_group(asked: Asked) -> Json:
    given = asked.arguments
    members, assigned = given.get("members"), given.get("assigned")
    wanted = given.get("state") or None
    if members is None and assigned is None and wanted is None:
        raise Refused(400, "say what the group is to have: members, state or assigned")
    state = None if wanted is None else next((each for each in STATES if each.lower() == wanted.lower()), wanted)
    if state is not None:
        check_group_may_be(state, members)

    def is_so(info: Json) -> bool:
        return (
            members in (None, len(info["Members"]))
            and state in (None, info["State"])
            and assigned in (None, _assigned(info))
        )

    return {"group": _wait_group(asked.served, given["group"], is_so, given.get("timeout", TIMEOUT_S))}


def _wait_group(served: Served, group: str, is_so: Callable[[Json], bool], timeout_s: float) -> Json:
    """A group once there is one for which `is_so` is true. Raises TimeoutError."""
    owner = served.owner

    def reached() -> Json | None:
        info = _group_info_of(owner, group)
        return info if info is not None and is_so(info) else None

    def found() -> str:
        info = _group_info_of(owner, group)
        if info is None:
            return f"there is no group {group}"
        return f"group {group} is {info['State']} with {len(info['Members'])} members and {_assigned(info)} partitions"

    def listeners() -> Iterator[Listeners]:
        return (server.groups.runtime.listeners for server in owner.live_servers())

    async def wait() -> Json:
        try:
            return await with_timeout(wait_until(reached, listeners, owner._recheck_s), timeout_s, found)
        except TimeoutError as error:
            raise owner._explained(error) from None

    return owner.call(wait())


def _assigned(info: Json) -> int:
    """The number of partitions that the members of a group have."""
    return sum(len(partitions) for member in info["Members"] for partitions in member["Assignment"].values())


def _group_info_of(owner: Broker | Cluster, group: str) -> Json | None:
    server = owner._coordinating(group)
    try:
        shard = None if server is None else server.groups.runtime.runner(group).shard
    except ApiError:  # no client has asked for a group yet
        return None
    found = None if shard is None else shard.groups.get(group)
    if shard is None or found is None:
        return None
    commits: dict[str, Json] = {}
    for topic, partition, committed in shard.offsets.of_group(group):
        commits.setdefault(topic, {})[str(partition)] = _commit(committed)
    return {
        "Group": group,
        "State": found.state.value,
        "Epoch": found.generation,
        "Members": [_member(member) for _, member in sorted(found.members.items())],
        "Commits": commits,
    }


def _member(member: Member) -> Json:
    subscribed = {topic for _, metadata in member.protocols for topic in parse_topics(metadata) or ()}
    assignment: dict[str, list[int]] = {}
    for topic, partition in describe_assignment(member.assignment):
        assignment.setdefault(topic, []).append(partition)
    return {
        "MemberID": member.member_id,
        "InstanceID": member.group_instance_id,
        "ClientID": member.client_id,
        "ClientHost": member.client_host,
        "SubscribedTopics": sorted(subscribed),
        "Assignment": assignment,
    }


def _commit(committed: CommittedOffset) -> Json:
    at = _BEGINNING + timedelta(milliseconds=min(max(committed.commit_timestamp_ms, 0), _TIME_MS_MAX))
    return {
        "Offset": committed.offset,
        "LeaderEpoch": committed.leader_epoch,
        "Metadata": committed.metadata,
        "At": at.isoformat().replace("+00:00", "Z"),
    }


# --- the table ------------------------------------------------------------------------------------

_METHODS: Final[Mapping[str, _Method]] = {
    "ApplyRetention": _Method("()", _apply_retention),
    "CoordinatorFor": _Method("(string) int32", _coordinator_for),
    "CreateTopic": _Method("(string, int32, map[string]string) error", _create_topic),
    "DeleteRecords": _Method("(string, int32, int64) error", _delete_records),
    "DeleteTopic": _Method("(string) error", _delete_topic),
    "GroupInfo": _Method("(string) *kfake.GroupInfo", _group_info),
    "LeaderFor": _Method("(string, int32) int32", _leader_for),
    "ListenAddrs": _Method("() []string", _listen_addrs),
    "MoveTopicPartition": _Method("(string, int32, int32) error", _move_topic_partition),
    "PartitionInfo": _Method("(string, int32) *kfake.PartitionInfo", _partition_info),
    "PartitionInfos": _Method("(string) []*kfake.PartitionInfo", _partition_infos),
    "RehashCoordinators": _Method("()", _rehash_coordinators),
    "ShufflePartitionLeaders": _Method("()", _shuffle_partition_leaders),
    "TopicIDInfo": _Method("([16]uint8) *kfake.TopicInfo", _topic_id_info),
    "TopicInfo": _Method("(string) *kfake.TopicInfo", _topic_info),
    "WaitGroupStable": _Method("(string, int) (*kfake.GroupInfo, error)", _wait_group_stable),
}
_INSTEAD: Final = {
    "AddNode": 'POST /brokers {"brokers": 3} starts a cluster of three; POST start starts a stopped broker again',
    "RemoveNode": "POST stop or kill, with its node, stops a broker of a cluster",
    "SetFollowers": "consumers read from followers by racks and replica.selector.class of POST /brokers",
    "SetGroupConfigs": "groups have no configs of their own",
    "Compact": "POST advance runs the compaction that is due",
}
"""Methods without a counterpart, and the closest alternative."""


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError
    return value


ARGUMENTS: Final = Kind("a list of texts", {"type": "array", "items": {"type": "string"}}, _texts)
