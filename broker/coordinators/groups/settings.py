"""The settings of groups and their offsets: the operator's keys, and limits."""

from dataclasses import dataclass
from typing import Final

from barnabas.broker.configuration.settings import from_key
from barnabas.broker.configuration.tables.broker import BrokerKeys

TIMERS_MAX: Final = 20_000
"""The limit of timers of all groups: one for each member or assigned id, one or two for each rebalance. A group with
one member takes up to 4 KiB; new members beyond the limit are refused and retry.
"""

TIMERS_OF_USED_GROUPS_MAX: Final = 30_000
"""The limit of timers for members of groups with committed offsets: a flood of new groups does not keep their consumers
from joining."""

HELD_BYTES_MAX: Final = 192 * 1024 * 1024
"""The approximate limit of the memory of members' metadata and assignments and all committed offsets: beyond it no
offsets are added, by any client, as they stay for days.
"""

HELD_BYTES_WITH_MEMBERS_MAX: Final = 224 * 1024 * 1024
"""Like HELD_BYTES_MAX, when a member adds to it: the memory of members is released with their sessions."""

HELD_BYTES_OF_USED_GROUPS_MAX: Final = 256 * 1024 * 1024
"""Like HELD_BYTES_WITH_MEMBERS_MAX, when a member of a group with committed offsets adds to it."""

HELD_BYTES_OF_GROUP_MAX: Final = 16 * 1024 * 1024
"""The limit of one group's memory when a member joins: all of it is sent to the group's leader, and could not be stored
either, since a generation is one record."""

PENDING_MEMBERS_MAX: Final = 2_000
"""The limit of member ids of one group that were assigned and not used yet. Kafka has none; each takes a kilobyte for
up to the session timeout that its client chose. Beyond it the oldest is removed: a live client returns with its id at
once, and a late one gets another.
"""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's `group.*`, `offsets.*` and `offset.*` keys that the coordinator supports, and one of its own. The limits
    are constants, which only tests change.
    """

    barnabas_group_newcomer_delay_ms: int = from_key(BrokerKeys.barnabas_group_newcomer_delay_ms)
    """The time for which a rebalance that a new member began waits for further ones, at most 1,000; 0 as in Kafka."""
    group_min_session_timeout_ms: int = from_key(BrokerKeys.group_min_session_timeout_ms)
    group_max_session_timeout_ms: int = from_key(BrokerKeys.group_max_session_timeout_ms)
    group_initial_rebalance_delay_ms: int = from_key(BrokerKeys.group_initial_rebalance_delay_ms)
    group_max_size: int = from_key(BrokerKeys.group_max_size)
    offset_metadata_max_bytes: int = from_key(BrokerKeys.offset_metadata_max_bytes)
    offsets_retention_minutes: int = from_key(BrokerKeys.offsets_retention_minutes)
    offsets_retention_check_interval_ms: int = from_key(BrokerKeys.offsets_retention_check_interval_ms)
    offsets_commit_timeout_ms: int = from_key(BrokerKeys.offsets_commit_timeout_ms)
    offsets_topic_compression_codec: int = from_key(BrokerKeys.offsets_topic_compression_codec)
    """A CompressionType."""
    timers_max: int = TIMERS_MAX
    timers_of_used_groups_max: int = TIMERS_OF_USED_GROUPS_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    held_bytes_with_members_max: int = HELD_BYTES_WITH_MEMBERS_MAX
    held_bytes_of_used_groups_max: int = HELD_BYTES_OF_USED_GROUPS_MAX
    held_bytes_of_group_max: int = HELD_BYTES_OF_GROUP_MAX
    pending_members_max: int = PENDING_MEMBERS_MAX

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
