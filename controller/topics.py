"""Topics as requests name them: the entries of CreateTopics and CreatePartitions and their outcome, valid names, and
limits.

*Source*: kafka 4.3.0 `Topic.java`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID

TOPIC_NAME_LENGTH_MAX = 249
"""Leaves room in a file name of 255 bytes for the partition's number and the suffix of deleted directories."""

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Kafka's `MAX_PARTITIONS_PER_BATCH`: a request for more is refused before anything is allocated for it."""

PARTITIONS_MAX = 50_000
"""The maximum number of partitions of all topics together; each takes 6 KiB of the broker's memory. Kafka has no such
limit.
"""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""KRaft's own log; no topic may have its name."""

USE_DEFAULT = -1
"""The partition count or replication factor that stands for the broker's default."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


class NewTopic(NamedTuple):
    """A topic to create.

    Either counts (-1 = the broker's default) or `assignments`: pairs of partition index and broker ids as they came.
    `config_error` is the caller's error for `configs`, reported unless there is a more basic error. A topic that
    `is_needed` is the broker's own: the limit of partitions does not apply to it.
    """

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = MappingProxyType({})
    config_error: ApiError | None = None
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic to expand to `count` partitions; `assignments` are the brokers of each new one, None to place them
    automatically.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class TopicOutcome(NamedTuple):
    """The result of one `NewTopic`; the last three fields are meaningful if `error` is NONE."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    partition_count: int = -1
    replication_factor: int = -1

    @staticmethod
    def failed(name: str, error: ErrorCode, message: str | None = None) -> "TopicOutcome":
        return TopicOutcome(name, error, message if message is not None else error.message)


class TopicDefaults(NamedTuple):
    """The broker's `num.partitions` and `default.replication.factor`."""

    partition_count: int = 1
    replication_factor: int = 1


def check_topic_name(name: str) -> None:
    """Raises: ApiError(INVALID_TOPIC_EXCEPTION) unless the name is valid in Kafka."""
    if not name:
        problem = "a topic name must not be empty"
    elif name in {".", ".."}:
        problem = f"a topic cannot be named '{name}'"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"topic name '{name}' has characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def is_valid_topic_name(name: str) -> bool:
    """Whether the name is valid in Kafka."""
    try:
        check_topic_name(name)
    except ApiError:
        return False
    return True


def collision_key(name: str) -> str:
    """Names with the same key would share metric names in Kafka, where '.' becomes '_'."""
    return name.replace(".", "_")
