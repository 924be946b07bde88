"""Changes of configuration in a running broker, and who hears of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from barnabas.broker.configuration.config import BrokerConfig, load
from barnabas.broker.configuration.live_config import DYNAMIC_KEYS, LiveConfig
from barnabas.testing import Broker

HOME = {"HOME": "/home/somebody"}

READ_WHERE_USED = frozenset(
    (
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",  # one, whatever the number
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "transaction.partition.verification.enable",
    )
)
"""Dynamic keys whose value nobody keeps."""
FOLLOWED_BESIDE_OTHERS = frozenset(("follower.replication.throttled.rate", "leader.replication.throttled.rate"))
"""By brokers that have others beside them."""

NOT_AT_RUN_TIME = frozenset(key.name for key in DYNAMIC_KEYS if key.is_fixed)
"""Dynamic in Kafka; a change is refused here."""


def live(**keywords: str) -> LiveConfig:
    properties = {key.replace("_", "."): value for key, value in keywords.items()}
    return LiveConfig(load(environ=HOME, properties=properties))


def test_dynamic_values_lie_over_static_ones() -> None:
    config = live(log_retention_hours="1", message_max_bytes="10")
    config.change({"log.retention.ms": "5", "message.max.bytes": "x", "num.partitions": "9", "zz": "1"})
    assert config.log_retention_ms == 5
    assert config.message_max_bytes == 10  # not a number: the static value stays in force
    assert config.num_partitions == 1  # read-only
    assert config.value("log.retention.ms") is None  # what the process was started with
    config.change({"max.connections.per.ip.overrides": "10.0.0.7:3"})
    assert config.log_retention_ms == 3_600_000
    assert config.max_connections_per_ip_overrides == {"10.0.0.7": 3}
    config.change({"max.connections.per.ip.overrides": "nonsense"})
    assert config.max_connections_per_ip_overrides == {}
    config.change({"log.retention.hours": "2"})  # written around the checks: it is read-only, but a synonym
    assert config.log_retention_ms == 7_200_000


def test_changes_are_checked_together_with_what_is_static() -> None:
    config = live(log_retention_hours="1")
    assert config.check_dynamic({"log.retention.ms": "0"}) == ("log.retention.ms must be -1 (unlimited) or at least 1",)
    assert config.check_dynamic({"log.retention.ms": "1"}) == ()


def test_a_follower_of_a_key_gets_its_value() -> None:
    config = live(max_connections="5")
    told: list[tuple[str, object]] = []
    config.follow(BrokerConfig.max_connections, lambda value: told.append(("most", value)))
    config.follow(BrokerConfig.log_retention_ms, lambda value: told.append(("retention", value)))
    both = (BrokerConfig.max_connections, BrokerConfig.message_max_bytes)
    config.follow_any(both, lambda: told.append(("any", (config.max_connections, config.message_max_bytes))))
    assert config.followed() == {"max.connections", "message.max.bytes", "log.retention.ms"}

    config.change({"max.connections": "6", "message.max.bytes": "7", "num.io.threads": "3"})
    assert told == [("most", 6), ("any", (6, 7))]
    told.clear()
    config.change({"max.connections": "6", "message.max.bytes": "7", "num.io.threads": "4"})
    assert told == []
    config.change({"log.retention.hours": "1"})
    assert told == [("most", 5), ("retention", 3_600_000), ("any", (5, 1_048_588))]


class Asked(Mapping[str, str]):
    """Overrides that know whose texts were asked for."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self.texts[name]

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        return self.texts.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def test_only_what_changed_is_read() -> None:
    config = live()
    config.change({"max.connections": "6", "message.max.bytes": "7", "log.segment.bytes": "100"})
    asked = Asked({"max.connections": "6", "message.max.bytes": "8", "log.segment.bytes": "100"})
    config.change(asked)
    assert asked.names == {"message.max.bytes"}
    assert (config.max_connections, config.message_max_bytes, config.log_segment_bytes) == (6, 8, 100)


def test_a_key_follower_that_raises_does_not_stop_others() -> None:
    config = live()
    told: list[str] = []
    for name in ("first", "second", "third"):

        def follower(value: int, name: str = name) -> None:
            told.append(name)
            if name == "second":
                raise ValueError(name)

        config.follow(BrokerConfig.max_connections, follower)
    with pytest.raises(ValueError, match="second"):
        config.change({"max.connections": "6"})
    assert told == ["first", "second", "third"]
    assert config.max_connections == 6


def test_every_dynamic_broker_key_has_a_follower() -> None:
    with Broker() as broker:
        followed = broker.server.config.followed()
    assert followed | READ_WHERE_USED | FOLLOWED_BESIDE_OTHERS | NOT_AT_RUN_TIME == {key.name for key in DYNAMIC_KEYS}
    assert not followed & (READ_WHERE_USED | NOT_AT_RUN_TIME)


def test_changes_at_run_time_hold_after_a_restart() -> None:
    with Broker() as broker:
        change = {"max.connections": "77", "unclean.leader.election.enable": "true"}
        broker.call(broker.server.configs.change("brokers", "<default>", lambda _: change))
        for _ in range(2):
            server = broker.server
            assert server.config.max_connections == 77
            assert server.controller.settings.unclean_leader_election_enable
            broker.restart()
