"""The table of verbs: path, effect, fields, and response. The HTTP server routes by it (`server.py`), and OpenAPI is
generated from it (`openapi.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.testing.control import actions, fields, kcl, rules
from barnabas.testing.control.actions import LISTED_DEFAULT, Asked
from barnabas.testing.control.fields import Field

TEXT: Final = "text/plain"
SVG: Final = "image/svg+xml"


@dataclass(frozen=True)
class Verb:
    """`method` and `path` are HTTP's; `answer` is a shape of `answers.SHAPES`, or a media type for text."""

    method: str
    path: str
    does: str
    answer: str
    call: Callable[[Asked], Any]
    fields: Sequence[Field] = ()
    status: int = 200

    @property
    def name(self) -> str:
        """The verb's name in errors."""
        return f"{self.method} {self.path}"

    @property
    def paths(self) -> Sequence[str]:
        """The paths of the verb: one for a broker also has a path without the broker's name, for main."""
        of_broker = self.path.removeprefix(_BROKER)
        return [self.path] if of_broker in ("", self.path) else [self.path, of_broker]

    @property
    def waits(self) -> bool:
        """Whether a request may wait as long as it specifies."""
        return any(field.argument == "timeout" for field in self.fields)

    @property
    def has_deadline(self) -> bool:
        """Whether a request, though no wait, may specify a deadline."""
        return any(field.kind is fields.DEADLINE for field in self.fields)


# --- fields of several verbs ----------------------------------------------------------------------

_API: Final = Field("api", fields.TEXTS, "Kafka's name of a request, such as Produce, or several. Default: all.")
_AFTER_WORK: Final = Field("after_work", fields.TRUTH, "Whether the broker carries out the request first.")
_TOPIC: Final = Field("topic", fields.TEXT, "The topic's name.", is_required=True)
_GROUP: Final = Field("group", fields.TEXT, "The consumer group.", is_required=True)
_TRANSACTIONAL_ID: Final = Field("transactional_id", fields.TEXT, "The transactional id.", is_required=True)
_COORDINATED: Final = (
    Field("group", fields.TEXT, "The consumer group."),
    Field("transactional_id", fields.TEXT, "The transactional id."),
)
_PARTITION: Final = Field("partition", fields.COUNT, "The partition's number.")
_TIMEOUT: Final = Field("timeout_ms", fields.TIMEOUT, "How long to wait, in real time.", argument="timeout")
_DEADLINE: Final = Field(
    "timeout_ms",
    fields.DEADLINE,
    "How long it may take, in real time; brokers themselves give up after 30 s.",
    argument="deadline",
)
_GO_TIMEOUT: Final = Field(
    "timeout", rules.TIMEOUT, "How long to wait, in real time. Default: 30s.", argument="timeout"
)
_AWAITED: Final = Field("count", fields.POSITIVE, "The number to wait for. Default: 1.")
_TO: Final = Field("to", fields.COUNT, "The number of the broker that is to. Default: any other one.")
_NODE: Final = Field("node", fields.COUNT, "The number of a broker of a cluster.", is_required=True)

_SELECTION: Final = (
    Field("topic", fields.TEXTS, "Requests about one of these topics."),
    Field("partition", fields.NUMBERS, "Requests about one of these partitions."),
    Field("group", fields.TEXTS, "Requests about one of these consumer groups."),
    Field("transactional_id", fields.TEXTS, "Requests about one of these transactional ids."),
    Field("client_id", fields.TEXTS, "Requests of clients with one of these ids."),
    Field("principal", fields.TEXTS, "Requests of one of these principals, as User:ANONYMOUS."),
    Field("connection", fields.NUMBERS, "Requests on one of these connections."),
    Field("version", fields.NUMBERS, "Requests in one of these versions of the API."),
    Field("node", fields.NUMBERS, "Requests to one of these brokers, by their ids.", argument="broker"),
    Field("from_brokers", fields.TRUTH, "Also requests that brokers of a cluster send each other."),
)
_LIMITS: Final = (
    Field("times", fields.POSITIVE, "The most requests that are hit."),
    Field("after", fields.COUNT, "The number of requests that pass first."),
    Field("every", fields.POSITIVE, "Which ones are hit: each N-th."),
    Field("probability", fields.CHANCE, "With which probability."),
    Field("seed", fields.NUMBER, "Seed of the random numbers for it; description of the fault has it."),
)
_MATCHING: Final = (*_SELECTION, *_LIMITS)
_OF_BROKER: Final = Field("node", fields.NUMBERS, "At these brokers, by id. Default: at all.", argument="broker")


# --- the table ------------------------------------------------------------------------------------

_BROKER: Final = "/brokers/{broker}"
_FAULT: Final = "/brokers/{broker}/faults/{fault}"


def _fault_verb(name: str, does: str, *own: Field, fields: Sequence[Field] = _MATCHING) -> Verb:
    call = actions.new_fault_of(name) if _API in own else actions.new_fault(name)
    return Verb("POST", f"{_BROKER}/{name}", does, "Fault", call, (*own, *fields), 201)


def _state_verb(name: str, does: str, *own: Field, answer: str = "Done", told: str | None = None) -> Verb:
    """`told` is the only field of the response, if it has one."""
    return Verb("POST", f"{_BROKER}/{name}", does, answer, actions.to_state(name, told), own)


def _get(path: str, does: str, answer: str, call: Callable[[Asked], Any], *own: Field) -> Verb:
    return Verb("GET", path, does, answer, call, own)


def _post(path: str, does: str, answer: str, call: Callable[[Asked], Any], *own: Field, status: int = 200) -> Verb:
    return Verb("POST", path, does, answer, call, own, status)


def _delete(path: str, does: str, answer: str, call: Callable[[Asked], Any]) -> Verb:
    return Verb("DELETE", path, does, answer, call)


_LIMIT: Final = Field("limit", fields.COUNT, f"The number of last entries to return. Default: {LISTED_DEFAULT}.")
_OPTIONAL_NODE: Final = Field(
    "node", fields.COUNT, "Which broker of a cluster, of which it is needed; none of a single broker."
)

VERBS: Final = (
    _get("/", "Where to begin.", "Index", actions.index),
    # Brokers
    _get("/brokers", "All brokers and clusters of this process.", "Brokers", actions.brokers),
    _post(
        "/brokers",
        "Start a broker, or a cluster, with data that goes when it is deleted; clients can connect on return.",
        "Broker",
        actions.start_broker,
        Field("name", fields.TEXT, "Its name in paths. Default: broker-N."),
        Field("brokers", fields.BROKERS, "More than one make a cluster, with the nodes 0 and so on."),
        Field("port", fields.PORT, "Where a single broker listens on 127.0.0.1. Default: a free port."),
        Field("configs", fields.CONFIGS, "Kafka's keys, as in server.properties."),
        Field("racks", fields.TEXTS, "The rack of each broker of a cluster."),
        Field("clock_ms", fields.NUMBER, "Its time, in ms since 1970, which only advance moves."),
        Field("seed_topics", fields.SEED_TOPICS, "Topics that are there from the start, and again after each reset."),
        status=201,
    ),
    _delete("/brokers", "Stop all brokers and clusters but main; their data goes.", "Done", actions.stop_brokers),
    _get(_BROKER, "A broker, or a cluster.", "Broker", actions.broker),
    _delete(_BROKER, "Stop it; its data goes.", "Done", actions.stop_broker),
    _post(f"{_BROKER}/kill", "End it as kill -9 would; its data stays.", "Broker", actions.kill, _OPTIONAL_NODE),
    _post(f"{_BROKER}/start", "Start what was killed or stopped again.", "Broker", actions.start, _OPTIONAL_NODE),
    _post(f"{_BROKER}/stop", "Stop a broker of a cluster cleanly.", "Broker", actions.stop, _NODE),
    _post(
        f"{_BROKER}/restart", "Stop it cleanly and start it again, all brokers of a cluster.", "Broker", actions.restart
    ),
    # Isolation
    _post(f"{_BROKER}/reset", "Reset it to its state after the start, with its seed topics.", "Broker", actions.reset),
    _post(f"{_BROKER}/snapshots", "Keep its state.", "Snapshot", actions.snapshot, status=201),
    _post(f"{_BROKER}/snapshots/{{snapshot}}/restore", "Restore that state.", "Broker", actions.restore),
    _delete(f"{_BROKER}/snapshots/{{snapshot}}", "Delete the snapshot.", "Done", actions.remove_snapshot),
    # Time
    _get(f"{_BROKER}/clock", "The broker's time.", "Clock", actions.clock),
    _post(
        f"{_BROKER}/advance",
        "Move its time ahead; what is due then has happened on return.",
        "Clock",
        actions.advance,
        Field("duration_ms", fields.DURATION, "How far.", is_required=True, argument="duration"),
    ),
    # Faults of requests
    _fault_verb(
        "fail",
        "Respond with an error.",
        _API,
        Field("error", fields.ERROR, "Kafka's name of the error, or its number.", is_required=True),
        Field("message", fields.TEXT, "The error message, in versions that have one."),
        Field("record_errors", fields.RECORD_ERRORS, "Messages for single records of a Produce."),
        Field("whole", fields.TRUTH, "Whether the whole response or its entries fail, where there is a choice."),
        _AFTER_WORK,
    ),
    _fault_verb(
        "delay",
        "Delay requests, and the next ones of their connections behind them.",
        _API,
        Field(
            "duration_ms",
            fields.DURATION_OR_RANGE,
            "How long, by the broker's time: one duration, or the shortest and the longest.",
            is_required=True,
            argument="duration",
        ),
        _AFTER_WORK,
    ),
    _fault_verb("hold", "Hold requests until they are released.", _API, _AFTER_WORK),
    _fault_verb("drop", "Lose requests, or with after_work their replies.", _API, _AFTER_WORK),
    _fault_verb("disconnect", "Close the connection instead of the work, or of the response.", _API, _AFTER_WORK),
    _fault_verb(
        "garble",
        "Damage answers.",
        _API,
        Field("way", fields.WAY, "How: batches, the frame's end, its length, its number.", is_required=True),
    ),
    _fault_verb(
        "throttle",
        "Throttle clients, as a quota does.",
        _API,
        Field("duration_ms", fields.DURATION, "How long.", is_required=True, argument="duration"),
    ),
    _fault_verb("refuse", "Close new connections.", _OF_BROKER, fields=_LIMITS),
    # Faults of whole things
    _fault_verb("leader_away", "Take the leader of a topic, or of a partition, away.", _TOPIC, _PARTITION, fields=()),
    _fault_verb(
        "coordinator_away",
        "Take the coordinator of a group, or of a transactional id, away; name one of them.",
        *_COORDINATED,
        fields=(),
    ),
    _fault_verb("disk_full", "Fill the disk.", _OF_BROKER, fields=_LIMITS),
    _fault_verb(
        "disk_fails",
        "Break the disk, until the broker is restarted; a broker of a cluster ends.",
        _OF_BROKER,
        fields=_LIMITS,
    ),
    _fault_verb(
        "disk_slow",
        "Slow down writes to the disk.",
        Field(
            "duration_ms",
            fields.DURATION_OR_RANGE,
            "How much, by the broker's time: one duration, or the shortest and the longest.",
            is_required=True,
            argument="duration",
        ),
        _OF_BROKER,
        fields=(),
    ),
    _fault_verb("pause", "Stop a broker as SIGSTOP does, until the fault is removed.", _OF_BROKER, fields=()),
    _fault_verb(
        "hang_transaction",
        "Leave a transaction open that no coordinator knows of, until the fault is removed.",
        _TOPIC,
        _PARTITION,
        fields=(),
    ),
    _state_verb(
        "expire_member",
        "Expire the session of a member of a group, or of all members.",
        _GROUP,
        Field("member_id", fields.TEXT, "Which one. Default: all."),
        answer="Members",
        told="members",
    ),
    _fault_verb(
        "partition_offline",
        "Take a partition offline, as when its brokers are away, until the fault is removed.",
        _TOPIC,
        _PARTITION,
        fields=(),
    ),
    _state_verb(
        "move_leader",
        "Move the leader of a partition to another broker of a cluster.",
        _TOPIC,
        _PARTITION,
        _TO,
        _DEADLINE,
        answer="Node",
        told="node",
    ),
    _state_verb(
        "move_coordinator",
        "Move the coordinator of a group, or of a transactional id, to another broker; name one of them.",
        *_COORDINATED,
        _TO,
        _DEADLINE,
        answer="Node",
        told="node",
    ),
    _state_verb(
        "raise_leader_epoch",
        "Elect the leader of a partition anew.",
        _TOPIC,
        _PARTITION,
        _DEADLINE,
        answer="LeaderEpoch",
        told="leader_epoch",
    ),
    _state_verb(
        "age_records",
        "Run retention once, as if records were older by this much.",
        _TOPIC,
        _PARTITION,
        Field("duration_ms", fields.DURATION, "How much.", is_required=True, argument="duration"),
    ),
    _state_verb("rebalance", "Start a rebalance of a group.", _GROUP),
    _state_verb("lose_offsets", "Forget a group's committed offsets of a topic.", _GROUP, _TOPIC),
    _state_verb("fence_producer", "Fence a transactional producer.", _TRANSACTIONAL_ID),
    _state_verb("abort_transaction", "Abort an open transaction behind its producer's back.", _TRANSACTIONAL_ID),
    # Removal of faults
    _post(
        f"{_BROKER}/faults",
        "Make a fault in the form of kcl fake.",
        "Rules",
        actions.new_rules,
        Field("rules", rules.RULES, "The rules; together they are one fault.", is_required=True),
    ),
    _post(
        f"{_FAULT}/wait",
        "Wait until the fault has hit this many requests, in the form of kcl fake.",
        "Hits",
        actions.wait,
        Field("hits", fields.POSITIVE, "The number of requests to wait for. Default: 1.", argument="count"),
        _GO_TIMEOUT,
    ),
    _get(f"{_BROKER}/faults", "All faults.", "Faults", actions.faults),
    _delete(f"{_BROKER}/faults", "Remove all faults.", "Removed", actions.clear),
    _get(_FAULT, "A fault.", "Fault", actions.fault),
    _delete(_FAULT, "Remove a fault, and release the requests that it holds.", "Fault", actions.remove_fault),
    _post(
        f"{_FAULT}/wait_hits",
        "Wait until the fault has hit this many requests.",
        "Fault",
        actions.wait_hits,
        _AWAITED,
        _TIMEOUT,
    ),
    _post(
        f"{_FAULT}/wait_held", "Wait until it holds this many requests.", "Fault", actions.wait_held, _AWAITED, _TIMEOUT
    ),
    _post(
        f"{_FAULT}/release",
        "Release the requests that it holds; later ones are held again.",
        "Fault",
        actions.release,
        Field("count", fields.COUNT, "The number. Default: all."),
    ),
    # Observation
    _post(
        f"{_BROKER}/recorded",
        "Record the requests of clients from now on; earlier recordings are forgotten.",
        "Done",
        actions.recorded,
        Field("from_brokers", fields.TRUTH, "Also requests that brokers of a cluster send each other."),
    ),
    _delete(f"{_BROKER}/recorded", "Record no more.", "Done", actions.stop_recording),
    _get(f"{_BROKER}/requests", "The requests of clients.", "Requests", actions.requests, _API, *_SELECTION, _LIMIT),
    _post(
        f"{_BROKER}/wait_request",
        "Wait until this many such requests were answered since the recording began; returns the last of them.",
        "Request",
        actions.wait_request,
        _API,
        *_SELECTION,
        _AWAITED,
        _TIMEOUT,
    ),
    _get(f"{_BROKER}/chart", "A sequence chart of the recorded requests.", TEXT, actions.chart("chart")),
    _get(f"{_BROKER}/chart.svg", "The same as a drawing, errors in red.", SVG, actions.chart("chart_svg")),
    _get(f"{_BROKER}/report", "The state of the broker, for a failing test.", TEXT, actions.report),
    # Topics and groups
    _get(f"{_BROKER}/topics", "Its topics.", "Topics", actions.topics),
    _post(
        f"{_BROKER}/create_topic",
        "Create a topic.",
        "Done",
        actions.create_topic,
        Field("name", fields.TEXT, "Its name.", is_required=True),
        Field("partitions", fields.POSITIVE, "The number of partitions. Default: num.partitions."),
        Field("replication_factor", fields.POSITIVE, "Of a cluster's topic."),
        Field("configs", fields.CONFIGS, "Configs of the topic."),
        _DEADLINE,
        status=201,
    ),
    _post(
        f"{_BROKER}/delete_topic",
        "Delete a topic.",
        "Done",
        actions.delete_topic,
        Field("name", fields.TEXT, "Its name.", is_required=True),
        _DEADLINE,
    ),
    _post(
        f"{_BROKER}/produce",
        "Append a record to a topic.",
        "Record",
        actions.produce,
        _TOPIC,
        Field("value", fields.TEXT, "As text."),
        Field("value_base64", fields.BASE64, "As any bytes."),
        Field("key", fields.TEXT, "As text."),
        Field("key_base64", fields.BASE64, "As any bytes."),
        _PARTITION,
        Field("headers", fields.HEADERS, "Texts."),
        Field("timestamp_ms", fields.NUMBER, "Default: the broker's time.", argument="timestamp"),
        _DEADLINE,
        status=201,
    ),
    _get(
        f"{_BROKER}/records",
        "The records of a topic.",
        "Records",
        actions.records,
        _TOPIC,
        _PARTITION,
        _LIMIT,
        _DEADLINE,
    ),
    _post(
        f"{_BROKER}/wait_records",
        "Wait until a topic holds this many records; returns all.",
        "Records",
        actions.wait_records,
        _TOPIC,
        Field("count", fields.COUNT, "The number to wait for. Default: 1."),
        _TIMEOUT,
        _LIMIT,
    ),
    _post(
        f"{_BROKER}/wait_silence",
        "Wait until nothing was written to a topic for this long, by the broker's time; returns all records.",
        "Records",
        actions.wait_silence,
        _TOPIC,
        Field("duration_ms", fields.DURATION, "How long.", is_required=True, argument="duration"),
        _TIMEOUT,
        _LIMIT,
    ),
    _post(
        f"{_BROKER}/delete_records",
        "Delete the records of a partition below an offset.",
        "Done",
        actions.delete_records,
        _TOPIC,
        _PARTITION,
        Field("offset", fields.COUNT, "The first one that stays. Default: all records go."),
        _DEADLINE,
    ),
    _get(f"{_BROKER}/group", "A consumer group.", "Group", actions.group, _GROUP, _DEADLINE),
    _post(
        f"{_BROKER}/wait_group",
        "Wait until a consumer group has a state, this many members, and at most this lag.",
        "Group",
        actions.wait_group,
        _GROUP,
        Field("state", fields.TEXT, "Kafka's name of it. Default: Stable."),
        Field("members", fields.COUNT, "The number of members. Default: any number."),
        Field("lag", fields.COUNT, "How far its committed offsets may be behind. Default: any number."),
        _TIMEOUT,
    ),
    # kcl fake
    _post(
        f"{_BROKER}/groups/wait",
        "Wait until a consumer group matches the given fields, at least one, in the form of kcl fake.",
        "GroupInfo",
        kcl.wait_group,
        _GROUP,
        Field("members", fields.COUNT, "The number of members."),
        Field("state", fields.TEXT, "Kafka's name of the group's state, in any case."),
        Field("assigned", fields.COUNT, "The number of partitions of all members."),
        _GO_TIMEOUT,
    ),
    _get(f"{_BROKER}/methods", "The methods of kfake that can be called.", "Methods", kcl.methods),
    _post(
        f"{_BROKER}/call/{{method}}",
        "Call a method of kfake.",
        "Result",
        kcl.call,
        Field("args", kcl.ARGUMENTS, "Its arguments: texts as they are, anything else in JSON."),
        _DEADLINE,
    ),
    # Clusters
    _get(
        f"{_BROKER}/leader",
        "The broker that leads a partition, as soon as one does.",
        "Node",
        actions.leader,
        _TOPIC,
        _PARTITION,
        _TIMEOUT,
    ),
    _get(
        f"{_BROKER}/coordinator",
        "The broker that coordinates a group, or a transactional id, as soon as one does; name one of them.",
        "Node",
        actions.coordinator,
        *_COORDINATED,
        _TIMEOUT,
    ),
    _get(f"{_BROKER}/controller", "The broker that is the controller.", "Node", actions.controller, _TIMEOUT),
    _post(
        f"{_BROKER}/cut",
        "Cut two brokers of a cluster off from each other, until the fault is removed.",
        "Fault",
        actions.cut,
        Field("one", fields.COUNT, "The number of a broker.", is_required=True),
        Field("other", fields.COUNT, "The number of another broker.", is_required=True),
        Field("one_way", fields.TRUTH, "Cut one direction only: `one` cannot reach `other`."),
        status=201,
    ),
    _post(f"{_BROKER}/heal", "End all cuts.", "Done", actions.heal),
    _post(f"{_BROKER}/wait_in_sync", "Wait until all replicas are in sync.", "Done", actions.wait_in_sync, _TIMEOUT),
    _post(f"{_BROKER}/wait_heard", "Wait until all brokers know the leaders.", "Done", actions.wait_heard, _TIMEOUT),
    _post(
        f"{_BROKER}/expire_session",
        "Expire the session of a broker of a cluster, once.",
        "Done",
        actions.expire_session,
        _NODE,
        _DEADLINE,
    ),
)
