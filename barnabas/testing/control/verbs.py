"""The table of verbs: path, effect, fields, and response. The HTTP server routes by it (`server.py`), and OpenAPI is
generated from it (`openapi.py`).
"""

from __future__ import annotations

from typing import Final

from barnabas.testing.control import actions, fields, kcl, rules
from barnabas.testing.control.actions import LISTED_DEFAULT
from barnabas.testing.control.fields import Field
from barnabas.testing.control.security_verbs import SECURITY_VERBS
from barnabas.testing.control.verb import (
    API,
    BROKER,
    FAULT,
    LIMITS,
    SELECTION,
    SVG,
    TEXT,
    delete,
    fault_verb,
    get,
    post,
    state_verb,
)

# --- fields of several verbs ----------------------------------------------------------------------

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

_OF_BROKER: Final = Field("node", fields.NUMBERS, "At these brokers, by id. Default: at all.", argument="broker")


# --- the table ------------------------------------------------------------------------------------

_LIMIT: Final = Field("limit", fields.COUNT, f"The number of last entries to return. Default: {LISTED_DEFAULT}.")
_OPTIONAL_NODE: Final = Field(
    "node", fields.COUNT, "Which broker of a cluster, of which it is needed; none of a single broker."
)

VERBS: Final = (
    get("/", "Where to begin.", "Index", actions.index),
    # Brokers
    get("/brokers", "All brokers and clusters of this process.", "Brokers", actions.brokers),
    post(
        "/brokers",
        "Start a broker, or a cluster, with data that goes when it is deleted; clients can connect on return.",
        "Broker",
        actions.start_broker,
        Field("name", fields.TEXT, "Its name in paths. Default: broker-N."),
        Field("brokers", fields.BROKERS, "More than one make a cluster, with the nodes 0 and so on."),
        Field("port", fields.PORT, "Where a single broker listens on 127.0.0.1. Default: a free port."),
        Field("configs", fields.CONFIGS, "Kafka's keys, as in server.properties."),
        Field("security", fields.SECURITY, "TLS and users: the response has what clients need."),
        Field("racks", fields.TEXTS, "The rack of each broker of a cluster."),
        Field("clock_ms", fields.NUMBER, "Its time, in ms since 1970, which only advance moves."),
        Field("seed_topics", fields.SEED_TOPICS, "Topics that are there from the start, and again after each reset."),
        status=201,
    ),
    delete("/brokers", "Stop all brokers and clusters but main; their data goes.", "Done", actions.stop_brokers),
    get(BROKER, "A broker, or a cluster.", "Broker", actions.broker),
    delete(BROKER, "Stop it; its data goes.", "Done", actions.stop_broker),
    post(f"{BROKER}/kill", "End it as kill -9 would; its data stays.", "Broker", actions.kill, _OPTIONAL_NODE),
    post(f"{BROKER}/start", "Start what was killed or stopped again.", "Broker", actions.start, _OPTIONAL_NODE),
    post(f"{BROKER}/stop", "Stop a broker of a cluster cleanly.", "Broker", actions.stop, _NODE),
    post(
        f"{BROKER}/restart", "Stop it cleanly and start it again, all brokers of a cluster.", "Broker", actions.restart
    ),
    # Isolation
    post(f"{BROKER}/reset", "Reset it to its state after the start, with its seed topics.", "Broker", actions.reset),
    post(f"{BROKER}/snapshots", "Keep its state.", "Snapshot", actions.snapshot, status=201),
    post(f"{BROKER}/snapshots/{{snapshot}}/restore", "Restore that state.", "Broker", actions.restore),
    delete(f"{BROKER}/snapshots/{{snapshot}}", "Delete the snapshot.", "Done", actions.remove_snapshot),
    # Time
    get(f"{BROKER}/clock", "The broker's time.", "Clock", actions.clock),
    post(
        f"{BROKER}/advance",
        "Move its time ahead; what is due then has happened on return.",
        "Clock",
        actions.advance,
        Field("duration_ms", fields.DURATION, "How far.", is_required=True, argument="duration"),
    ),
    # Faults of requests
    fault_verb(
        "fail",
        "Respond with an error.",
        API,
        Field("error", fields.ERROR, "Kafka's name of the error, or its number.", is_required=True),
        Field("message", fields.TEXT, "The error message, in versions that have one."),
        Field("record_errors", fields.RECORD_ERRORS, "Messages for single records of a Produce."),
        Field("whole", fields.TRUTH, "Whether the whole response or its entries fail, where there is a choice."),
        _AFTER_WORK,
    ),
    fault_verb(
        "delay",
        "Delay requests, and the next ones of their connections behind them.",
        API,
        Field(
            "duration_ms",
            fields.DURATION_OR_RANGE,
            "How long, by the broker's time: one duration, or the shortest and the longest.",
            is_required=True,
            argument="duration",
        ),
        _AFTER_WORK,
    ),
    fault_verb("hold", "Hold requests until they are released.", API, _AFTER_WORK),
    fault_verb("drop", "Lose requests, or with after_work their replies.", API, _AFTER_WORK),
    fault_verb("disconnect", "Close the connection instead of the work, or of the response.", API, _AFTER_WORK),
    fault_verb(
        "garble",
        "Damage answers.",
        API,
        Field("way", fields.WAY, "How: batches, the frame's end, its length, its number.", is_required=True),
    ),
    fault_verb(
        "throttle",
        "Throttle clients, as a quota does.",
        API,
        Field("duration_ms", fields.DURATION, "How long.", is_required=True, argument="duration"),
    ),
    fault_verb("refuse", "Close new connections.", _OF_BROKER, fields=LIMITS),
    *SECURITY_VERBS,
    # Faults of whole things
    fault_verb("leader_away", "Take the leader of a topic, or of a partition, away.", _TOPIC, _PARTITION, fields=()),
    fault_verb(
        "coordinator_away",
        "Take the coordinator of a group, or of a transactional id, away; name one of them.",
        *_COORDINATED,
        fields=(),
    ),
    fault_verb("disk_full", "Fill the disk.", _OF_BROKER, fields=LIMITS),
    fault_verb(
        "disk_fails",
        "Break the disk, until the broker is restarted; a broker of a cluster ends.",
        _OF_BROKER,
        fields=LIMITS,
    ),
    fault_verb(
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
    fault_verb("pause", "Stop a broker as SIGSTOP does, until the fault is removed.", _OF_BROKER, fields=()),
    fault_verb(
        "hang_transaction",
        "Leave a transaction open that no coordinator knows of, until the fault is removed.",
        _TOPIC,
        _PARTITION,
        fields=(),
    ),
    state_verb(
        "expire_member",
        "Expire the session of a member of a group, or of all members.",
        _GROUP,
        Field("member_id", fields.TEXT, "Which one. Default: all."),
        answer="Members",
        told="members",
    ),
    fault_verb(
        "partition_offline",
        "Take a partition offline, as when its brokers are away, until the fault is removed.",
        _TOPIC,
        _PARTITION,
        fields=(),
    ),
    state_verb(
        "move_leader",
        "Move the leader of a partition to another broker of a cluster.",
        _TOPIC,
        _PARTITION,
        _TO,
        _DEADLINE,
        answer="Node",
        told="node",
    ),
    state_verb(
        "move_coordinator",
        "Move the coordinator of a group, or of a transactional id, to another broker; name one of them.",
        *_COORDINATED,
        _TO,
        _DEADLINE,
        answer="Node",
        told="node",
    ),
    state_verb(
        "raise_leader_epoch",
        "Elect the leader of a partition anew.",
        _TOPIC,
        _PARTITION,
        _DEADLINE,
        answer="LeaderEpoch",
        told="leader_epoch",
    ),
    state_verb(
        "age_records",
        "Run retention once, as if records were older by this much.",
        _TOPIC,
        _PARTITION,
        Field("duration_ms", fields.DURATION, "How much.", is_required=True, argument="duration"),
    ),
    state_verb("rebalance", "Start a rebalance of a group.", _GROUP),
    state_verb("lose_offsets", "Forget a group's committed offsets of a topic.", _GROUP, _TOPIC),
    state_verb("fence_producer", "Fence a transactional producer.", _TRANSACTIONAL_ID),
    state_verb("abort_transaction", "Abort an open transaction behind its producer's back.", _TRANSACTIONAL_ID),
    # Removal of faults
    post(
        f"{BROKER}/faults",
        "Make a fault in the form of kcl fake.",
        "Rules",
        actions.new_rules,
        Field("rules", rules.RULES, "The rules; together they are one fault.", is_required=True),
    ),
    post(
        f"{FAULT}/wait",
        "Wait until the fault has hit this many requests, in the form of kcl fake.",
        "Hits",
        actions.wait,
        Field("hits", fields.POSITIVE, "The number of requests to wait for. Default: 1.", argument="count"),
        _GO_TIMEOUT,
    ),
    get(f"{BROKER}/faults", "All faults.", "Faults", actions.faults),
    delete(f"{BROKER}/faults", "Remove all faults.", "Removed", actions.clear),
    get(FAULT, "A fault.", "Fault", actions.fault),
    delete(FAULT, "Remove a fault, and release the requests that it holds.", "Fault", actions.remove_fault),
    post(
        f"{FAULT}/wait_hits",
        "Wait until the fault has hit this many requests.",
        "Fault",
        actions.wait_hits,
        _AWAITED,
        _TIMEOUT,
    ),
    post(
        f"{FAULT}/wait_held", "Wait until it holds this many requests.", "Fault", actions.wait_held, _AWAITED, _TIMEOUT
    ),
    post(
        f"{FAULT}/release",
        "Release the requests that it holds; later ones are held again.",
        "Fault",
        actions.release,
        Field("count", fields.COUNT, "The number. Default: all."),
    ),
    # Observation
    post(
        f"{BROKER}/recorded",
        "Record the requests of clients from now on; earlier recordings are forgotten.",
        "Done",
        actions.recorded,
        Field("from_brokers", fields.TRUTH, "Also requests that brokers of a cluster send each other."),
    ),
    delete(f"{BROKER}/recorded", "Record no more.", "Done", actions.stop_recording),
    get(f"{BROKER}/requests", "The requests of clients.", "Requests", actions.requests, API, *SELECTION, _LIMIT),
    post(
        f"{BROKER}/wait_request",
        "Wait until this many such requests were answered since the recording began; returns the last of them.",
        "Request",
        actions.wait_request,
        API,
        *SELECTION,
        _AWAITED,
        _TIMEOUT,
    ),
    get(f"{BROKER}/chart", "A sequence chart of the recorded requests.", TEXT, actions.chart("chart")),
    get(f"{BROKER}/chart.svg", "The same as a drawing, errors in red.", SVG, actions.chart("chart_svg")),
    get(f"{BROKER}/report", "The state of the broker, for a failing test.", TEXT, actions.report),
    # Topics and groups
    get(f"{BROKER}/topics", "Its topics.", "Topics", actions.topics),
    post(
        f"{BROKER}/create_topic",
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
    post(
        f"{BROKER}/delete_topic",
        "Delete a topic.",
        "Done",
        actions.delete_topic,
        Field("name", fields.TEXT, "Its name.", is_required=True),
        _DEADLINE,
    ),
    post(
        f"{BROKER}/produce",
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
    get(
        f"{BROKER}/records",
        "The records of a topic.",
        "Records",
        actions.records,
        _TOPIC,
        _PARTITION,
        _LIMIT,
        _DEADLINE,
    ),
    post(
        f"{BROKER}/wait_records",
        "Wait until a topic holds this many records; returns all.",
        "Records",
        actions.wait_records,
        _TOPIC,
        Field("count", fields.COUNT, "The number to wait for. Default: 1."),
        _TIMEOUT,
        _LIMIT,
    ),
    post(
        f"{BROKER}/wait_silence",
        "Wait until nothing was written to a topic for this long, by the broker's time; returns all records.",
        "Records",
        actions.wait_silence,
        _TOPIC,
        Field("duration_ms", fields.DURATION, "How long.", is_required=True, argument="duration"),
        _TIMEOUT,
        _LIMIT,
    ),
    post(
        f"{BROKER}/delete_records",
        "Delete the records of a partition below an offset.",
        "Done",
        actions.delete_records,
        _TOPIC,
        _PARTITION,
        Field("offset", fields.COUNT, "The first one that stays. Default: all records go."),
        _DEADLINE,
    ),
    get(f"{BROKER}/group", "A consumer group.", "Group", actions.group, _GROUP, _DEADLINE),
    post(
        f"{BROKER}/wait_group",
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
    post(
        f"{BROKER}/groups/wait",
        "Wait until a consumer group matches the given fields, at least one, in the form of kcl fake.",
        "GroupInfo",
        kcl.wait_group,
        _GROUP,
        Field("members", fields.COUNT, "The number of members."),
        Field("state", fields.TEXT, "Kafka's name of the group's state, in any case."),
        Field("assigned", fields.COUNT, "The number of partitions of all members."),
        _GO_TIMEOUT,
    ),
    get(f"{BROKER}/methods", "The methods of kfake that can be called.", "Methods", kcl.methods),
    post(
        f"{BROKER}/call/{{method}}",
        "Call a method of kfake.",
        "Result",
        kcl.call,
        Field("args", kcl.ARGUMENTS, "Its arguments: texts as they are, anything else in JSON."),
        _DEADLINE,
    ),
    # Clusters
    get(
        f"{BROKER}/leader",
        "The broker that leads a partition, as soon as one does.",
        "Node",
        actions.leader,
        _TOPIC,
        _PARTITION,
        _TIMEOUT,
    ),
    get(
        f"{BROKER}/coordinator",
        "The broker that coordinates a group, or a transactional id, as soon as one does; name one of them.",
        "Node",
        actions.coordinator,
        *_COORDINATED,
        _TIMEOUT,
    ),
    get(f"{BROKER}/controller", "The broker that is the controller.", "Node", actions.controller, _TIMEOUT),
    post(
        f"{BROKER}/cut",
        "Cut two brokers of a cluster off from each other, until the fault is removed.",
        "Fault",
        actions.cut,
        Field("one", fields.COUNT, "The number of a broker.", is_required=True),
        Field("other", fields.COUNT, "The number of another broker.", is_required=True),
        Field("one_way", fields.TRUTH, "Cut one direction only: `one` cannot reach `other`."),
        status=201,
    ),
    post(f"{BROKER}/heal", "End all cuts.", "Done", actions.heal),
    post(f"{BROKER}/wait_in_sync", "Wait until all replicas are in sync.", "Done", actions.wait_in_sync, _TIMEOUT),
    post(f"{BROKER}/wait_heard", "Wait until all brokers know the leaders.", "Done", actions.wait_heard, _TIMEOUT),
    post(
        f"{BROKER}/expire_session",
        "Expire the session of a broker of a cluster, once.",
        "Done",
        actions.expire_session,
        _NODE,
        _DEADLINE,
    ),
)
