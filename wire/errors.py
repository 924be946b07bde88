"""Kafka's error codes and the exceptions that carry them.

Codes, names and retriability: org.apache.kafka.common.protocol.Errors of Kafka 4.3.0. The messages are our own.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """A Kafka error code: an int on the wire, with Kafka's name, its retriability for clients, and a message for
    people.

    `retriable` is true if Kafka's exception class extends RetriableException.
    """

    retriable: bool
    message: str

    def __new__(cls, code: int, message: str = "", retriable: bool = False) -> ErrorCode:
        error = int.__new__(cls, code)
        error._value_ = code
        error.message = message
        error.retriable = retriable
        return error

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The error with a code from a peer; an unknown code is UNKNOWN_SERVER_ERROR, as in Kafka."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = (-1, "The broker failed in an unexpected way while handling the request.")
    NONE = (0, "")
    OFFSET_OUT_OF_RANGE = (1, "The offset asked for lies outside the range the broker keeps for this partition.")
    CORRUPT_MESSAGE = (
        2,
        "The message is corrupt: its checksum or size is wrong, or a compacted topic got a null key.",
        True,
    )
    UNKNOWN_TOPIC_OR_PARTITION = (3, "This broker does not host the topic or partition.", True)
    INVALID_FETCH_SIZE = (4, "The fetch size asked for is not valid.")
    LEADER_NOT_AVAILABLE = (5, "The partition has no leader at the moment: an election is under way.", True)
    NOT_LEADER_OR_FOLLOWER = (6, "This broker is not the leader of the partition, or holds no replica of it.", True)
    REQUEST_TIMED_OUT = (7, "The request was not completed in the time it allowed.", True)
    BROKER_NOT_AVAILABLE = (8, "The broker is not available.")
    REPLICA_NOT_AVAILABLE = (9, "The replica of this partition is not available here.", True)
    MESSAGE_TOO_LARGE = (10, "A message in the request is larger than the broker accepts.")
    STALE_CONTROLLER_EPOCH = (11, "The controller has moved to another broker.")
    OFFSET_METADATA_TOO_LARGE = (12, "The metadata that came with the offset is too large.")
    NETWORK_EXCEPTION = (13, "The broker closed the connection before it answered.", True)
    COORDINATOR_LOAD_IN_PROGRESS = (
        14,
        "The coordinator is still loading its state and cannot serve requests yet.",
        True,
    )
    COORDINATOR_NOT_AVAILABLE = (15, "The coordinator is not available.", True)
    NOT_COORDINATOR = (16, "This broker is not the coordinator asked for.", True)
    INVALID_TOPIC_EXCEPTION = (17, "The operation is not allowed on this topic, or its name is not valid.")
    RECORD_LIST_TOO_LARGE = (18, "The record batch is larger than the broker's segment size for this topic.")
    NOT_ENOUGH_REPLICAS = (19, "Fewer replicas are in sync than required, so nothing was written.", True)
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "The messages were written, but to fewer in-sync replicas than required.",
        True,
    )
    INVALID_REQUIRED_ACKS = (21, "The produce request asks for an invalid number of acknowledgements.")
    ILLEGAL_GENERATION = (22, "The generation id is not the group's current one.")
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        "The member shares no protocol with the group, or the first member named no protocol type or no protocols.",
    )
    INVALID_GROUP_ID = (24, "The group id is not valid.")
    UNKNOWN_MEMBER_ID = (25, "The coordinator does not know this member.")
    INVALID_SESSION_TIMEOUT = (
        26,
        "The session timeout is outside group.min.session.timeout.ms to group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = (27, "The group is rebalancing; the member has to join again.")
    INVALID_COMMIT_OFFSET_SIZE = (28, "The size of the offset commit is not valid.")
    TOPIC_AUTHORIZATION_FAILED = (29, "Not authorized to access the topic.")
    GROUP_AUTHORIZATION_FAILED = (30, "Not authorized to access the group.")
    CLUSTER_AUTHORIZATION_FAILED = (31, "Not authorized for this operation on the cluster.")
    INVALID_TIMESTAMP = (32, "The timestamp of the message is outside the range the topic accepts.")
    UNSUPPORTED_SASL_MECHANISM = (33, "The broker does not offer the SASL mechanism asked for.")
    ILLEGAL_SASL_STATE = (34, "The request does not fit the present state of SASL authentication.")
    UNSUPPORTED_VERSION = (35, "This version of the API is not supported.")
    TOPIC_ALREADY_EXISTS = (36, "A topic of this name exists already.")
    INVALID_PARTITIONS = (37, "The number of partitions is not valid.")
    INVALID_REPLICATION_FACTOR = (38, "The replication factor is below 1 or exceeds the number of available brokers.")
    INVALID_REPLICA_ASSIGNMENT = (39, "The assignment of replicas is not valid.")
    INVALID_CONFIG = (40, "The configuration is not valid.")
    NOT_CONTROLLER = (41, "This broker is not the controller of the cluster.", True)
    INVALID_REQUEST = (42, "The request is malformed or contradicts itself.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (43, "The message format of the log does not support this request.")
    POLICY_VIOLATION = (44, "The request violates a policy configured on the broker.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (45, "The sequence number does not follow the last one of this producer.")
    DUPLICATE_SEQUENCE_NUMBER = (46, "The sequence number was seen before.")
    INVALID_PRODUCER_EPOCH = (47, "The producer used an epoch older than the current one.")
    INVALID_TXN_STATE = (48, "The transactional operation is not allowed in the transaction's present state.")
    INVALID_PRODUCER_ID_MAPPING = (49, "The producer id does not belong to this transactional id.")
    INVALID_TRANSACTION_TIMEOUT = (50, "The transaction timeout exceeds transaction.max.timeout.ms.")
    CONCURRENT_TRANSACTIONS = (51, "Another operation on the same transaction is still under way.", True)
    TRANSACTION_COORDINATOR_FENCED = (52, "The transaction marker comes from a coordinator that has been replaced.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (53, "Not authorized to use the transactional id.")
    SECURITY_DISABLED = (54, "Security features are switched off.")
    OPERATION_NOT_ATTEMPTED = (55, "The operation was not tried, because another one of the same request failed.")
    KAFKA_STORAGE_ERROR = (56, "The broker could not read or write its log on disk.", True)
    LOG_DIR_NOT_FOUND = (57, "The log directory is not one of the broker's.")
    SASL_AUTHENTICATION_FAILED = (58, "SASL authentication failed.")
    UNKNOWN_PRODUCER_ID = (59, "The broker knows nothing (any more) about this producer id.")
    REASSIGNMENT_IN_PROGRESS = (60, "A reassignment of the partition is under way.")
    DELEGATION_TOKEN_AUTH_DISABLED = (61, "Delegation tokens are not enabled.")
    DELEGATION_TOKEN_NOT_FOUND = (62, "The broker does not know this delegation token.")
    DELEGATION_TOKEN_OWNER_MISMATCH = (63, "The principal is neither owner nor renewer of the token.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (64, "Delegation tokens cannot be asked for over this kind of connection.")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (65, "Not authorized for this delegation token.")
    DELEGATION_TOKEN_EXPIRED = (66, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = (67, "The type of the principal is not supported.")
    NON_EMPTY_GROUP = (68, "The group still has members.")
    GROUP_ID_NOT_FOUND = (69, "There is no group of this id.")
    FETCH_SESSION_ID_NOT_FOUND = (70, "There is no fetch session of this id.", True)
    INVALID_FETCH_SESSION_EPOCH = (71, "The epoch of the fetch session is not the expected one.", True)
    LISTENER_NOT_FOUND = (72, "The leader has no listener of the name the request came in on.", True)
    TOPIC_DELETION_DISABLED = (73, "Deleting topics is switched off.")
    FENCED_LEADER_EPOCH = (74, "The leader epoch of the request is older than the broker's.", True)
    UNKNOWN_LEADER_EPOCH = (75, "The leader epoch of the request is newer than the broker's.", True)
    UNSUPPORTED_COMPRESSION_TYPE = (76, "The client cannot have sent or cannot read data of this compression type.")
    STALE_BROKER_EPOCH = (77, "The broker has registered again since: its epoch changed.")
    OFFSET_NOT_AVAILABLE = (
        78,
        "The new leader's high watermark has not caught up yet, so its offsets might go backwards.",
        True,
    )
    MEMBER_ID_REQUIRED = (79, "The member has to join again with the member id it was just given.")
    PREFERRED_LEADER_NOT_AVAILABLE = (80, "The preferred leader is not available.", True)
    GROUP_MAX_SIZE_REACHED = (81, "The group has as many members as it may have.")
    FENCED_INSTANCE_ID = (82, "Another member has registered with the same group.instance.id.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, "No replica that could become leader is available.", True)
    ELECTION_NOT_NEEDED = (84, "The partition has the right leader already.", True)
    NO_REASSIGNMENT_IN_PROGRESS = (85, "No reassignment of the partition is under way.")
    GROUP_SUBSCRIBED_TO_TOPIC = (86, "The group is subscribed to the topic, so its offsets cannot be deleted.")
    INVALID_RECORD = (87, "The broker's checks refused the record.")
    UNSTABLE_OFFSET_COMMIT = (88, "Some offsets belong to transactions that have not ended.", True)
    THROTTLING_QUOTA_EXCEEDED = (89, "A quota is exhausted.", True)
    PRODUCER_FENCED = (90, "A newer producer took over the transactional id.")
    RESOURCE_NOT_FOUND = (91, "The request names a resource that does not exist.")
    DUPLICATE_RESOURCE = (92, "The request names the same resource twice.")
    UNACCEPTABLE_CREDENTIAL = (93, "The credential does not meet the requirements.")
    INCONSISTENT_VOTER_SET = (94, "Sender or receiver is not among the expected voters.")
    INVALID_UPDATE_VERSION = (95, "The version given for the update is not valid.")
    FEATURE_UPDATE_FAILED = (96, "The finalized features could not be updated.")
    PRINCIPAL_DESERIALIZATION_FAILURE = (97, "The principal of a forwarded request could not be read.")
    SNAPSHOT_NOT_FOUND = (98, "The snapshot does not exist.")
    POSITION_OUT_OF_RANGE = (99, "The position is negative or beyond the end of the snapshot.")
    UNKNOWN_TOPIC_ID = (100, "This broker does not host a topic of this id.", True)
    DUPLICATE_BROKER_REGISTRATION = (101, "The broker id is in use already.")
    BROKER_ID_NOT_REGISTERED = (102, "No broker of this id is registered.")
    INCONSISTENT_TOPIC_ID = (103, "The topic id of the log differs from the one in the request.", True)
    INCONSISTENT_CLUSTER_ID = (104, "The cluster id of the request is not this cluster's.")
    TRANSACTIONAL_ID_NOT_FOUND = (105, "The transactional id is not known.")
    FETCH_SESSION_TOPIC_ID_ERROR = (106, "The fetch session mixes requests with and without topic ids.", True)
    INELIGIBLE_REPLICA = (107, "The proposed ISR has a replica that may not be in it.")
    NEW_LEADER_ELECTED = (108, "The partition was altered, but its leader has changed.")
    OFFSET_MOVED_TO_TIERED_STORAGE = (109, "The offset has moved to tiered storage.")
    FENCED_MEMBER_EPOCH = (
        110,
        "The coordinator fenced the member's epoch; it has to give up its partitions and join again.",
    )
    UNRELEASED_INSTANCE_ID = (111, "Another member still holds the instance id; it has to leave first.")
    UNSUPPORTED_ASSIGNOR = (112, "The group does not support the assignor or its versions.")
    STALE_MEMBER_EPOCH = (113, "The member's epoch is out of date; it has to retry with the one of its next heartbeat.")
    MISMATCHED_ENDPOINT_TYPE = (114, "The request went to the wrong type of endpoint.")
    UNSUPPORTED_ENDPOINT_TYPE = (115, "The type of endpoint is not supported.")
    UNKNOWN_CONTROLLER_ID = (116, "There is no controller of this id.")
    UNKNOWN_SUBSCRIPTION_ID = (117, "The telemetry subscription id is not valid or out of date.")
    TELEMETRY_TOO_LARGE = (118, "The telemetry is larger than the broker accepts.")
    INVALID_REGISTRATION = (119, "The controller refused the broker's registration.")
    TRANSACTION_ABORTABLE = (
        120,
        "The transaction ran into an error; abort it, then the transactional id can be used again.",
    )
    INVALID_RECORD_STATE = (121, "The record is not in a state that allows the acknowledgement.")
    SHARE_SESSION_NOT_FOUND = (122, "There is no such share session.", True)
    INVALID_SHARE_SESSION_EPOCH = (123, "The epoch of the share session is not the expected one.", True)
    FENCED_STATE_EPOCH = (124, "The state epoch of the share group is not the expected one.")
    INVALID_VOTER_KEY = (125, "The voter key is not the receiving replica's.")
    DUPLICATE_VOTER = (126, "The voter is in the voter set already.")
    VOTER_NOT_FOUND = (127, "The voter is not in the voter set.")
    INVALID_REGULAR_EXPRESSION = (128, "The regular expression is not valid.")
    REBOOTSTRAP_REQUIRED = (
        129,
        "The client's metadata is out of date; it has to start from its bootstrap servers again.",
    )
    STREAMS_INVALID_TOPOLOGY = (130, "The streams topology is not valid.")
    STREAMS_INVALID_TOPOLOGY_EPOCH = (131, "The epoch of the streams topology is not valid.")
    STREAMS_TOPOLOGY_FENCED = (132, "The epoch of the streams topology is out of date.")
    SHARE_SESSION_LIMIT_REACHED = (133, "There are as many share sessions as there may be.", True)


class ProtocolError(Exception):
    """The peer sent bytes that are no valid Kafka message: there is no response, the connection is closed."""


class ForeignProtocol(ProtocolError):
    """The peer uses another protocol, which the text names."""


class TooManyElements(ProtocolError):
    """A request's arrays have more elements than the limit; the bytes may be valid."""


class ApiError(Exception):
    """A request, or a part of it, failed with an error for the client: handlers turn it into the response.

    `error` is the code for the response; `message` is for people (the code's own message by default). It may contain
    names from the request, however long: a response contains as much of it as fits into a string (see
    `writer_source.py`).
    """

    def __init__(self, error: ErrorCode, message: str = "") -> None:
        self.error = error
        self.message = message or error.message
        super().__init__(f"{error.name}: {self.message}")
