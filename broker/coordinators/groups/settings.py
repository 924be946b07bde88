"""What groups and their offsets go by: what an operator may set, and how much there may be of them."""

from dataclasses import dataclass
from typing import Final

from barnabas.broker.configuration.settings import from_key
from barnabas.broker.configuration.tables.broker import BrokerKeys

TIMERS_MAX: Final = 20_000
"""Timers of all groups: one for each member or id that was handed out, one or two for each rebalance. A group with one
member takes up to 4 KiB; newcomers beyond that are told to come back.
"""

TIMERS_OF_USED_GROUPS_MAX: Final = 30_000
"""How many timers there may be when a group with committed offsets asks for one: a flood of new groups does not keep
their consumers from coming back."""

HELD_BYTES_MAX: Final = 192 * 1024 * 1024
"""How much memory members' metadata and assignments and all committed offsets may take, about: beyond it no offsets are
added, whoever commits, as they stay for days.
"""

HELD_BYTES_WITH_MEMBERS_MAX: Final = 224 * 1024 * 1024
"""As HELD_BYTES_MAX, where a member adds to it: what members hold goes with their sessions."""

HELD_BYTES_OF_USED_GROUPS_MAX: Final = 256 * 1024 * 1024
"""As HELD_BYTES_WITH_MEMBERS_MAX, where a member of a group with committed offsets adds to it."""

HELD_BYTES_OF_GROUP_MAX: Final = 16 * 1024 * 1024
"""How much one group may take when a member joins: all of it goes to whoever leads the group, and could not be stored
either, since a generation is one record. """

PENDING_MEMBERS_MAX: Final = 2_000
"""Member ids of one group that were handed out and not used yet. Kafka has no limit; each costs a kilobyte for up to
the session timeout that its asker chose. Beyond it the oldest is forgotten: who is alive comes back with its id at
once, and who comes too late gets another.
"""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's `group.*`, `offsets.*` and `offset.*` keys that the coordinator obeys, and one of its own. The limits
    are constants, which only tests choose.
    """

    barnabas_group_newcomer_delay_ms: int = from_key(BrokerKeys.barnabas_group_newcomer_delay_ms)
    """How long a rebalance that a newcomer began waits for more of them, at most 1,000; 0 as in Kafka."""
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
