"""The brokers of `serve --brokers N`: each has the first one's configuration, with ids and ports counted up. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from barnabas.broker.cli.cluster_directory import broker_directory
from barnabas.broker.configuration.config import BrokerConfig, ConfigError, default_data_directory, parse_address
from barnabas.broker.configuration.listeners import BROKERS_LISTENER, PORT_MAX

BROKERS_MAX: Final = 100

NODE_ID_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker: its id, its own configuration, and the port of its own store listener."""

    node_id: int
    configs: Mapping[str, str]
    store_port: int
    directories: Sequence[str]
    former_pid: int = 0
    """The process that ran that broker for a former parent, and may still run."""
    former_secret_digest: str = ""
    """The digest of the secret that this process was given."""


def broker_count(text: str) -> int:
    """The value of --brokers. Raises: ConfigError."""
    if not text.isdecimal() or not 1 <= int(text) <= BROKERS_MAX:
        raise ConfigError([f"--brokers {text}: expected a number of 1 to {BROKERS_MAX}"])
    return int(text)


def base_directories(config: BrokerConfig, environ: Mapping[str, str]) -> list[str]:
    """The cluster's directories: below `log.dirs`, or the default directory of a cluster if that is not set."""
    directories = list(config.log_dirs)
    if directories == [os.path.abspath(default_data_directory(environ, config.node_id))]:
        return [os.path.join(os.path.dirname(directories[0]), "cluster")]
    return directories


def broker_plans(config: BrokerConfig, directories: Sequence[str], count: int) -> list[BrokerPlan]:
    """The plans of so many brokers, of which `config` is the first one's configuration, without the settings that
    differ between brokers. Raises: ConfigError."""
    if (last := config.node_id + count - 1) > NODE_ID_MAX:
        raise ConfigError([f"--brokers: node.id {last} would be above {NODE_ID_MAX}"])
    return [_plan(config, directories, node_id, count) for node_id in range(config.node_id, config.node_id + count)]


def with_note(plans: Sequence[BrokerPlan], note: Mapping[str, Any]) -> list[BrokerPlan]:
    """The plans with the noted ports, if any, and the processes that may still run."""
    found = []
    for plan in plans:
        noted = note.get(str(plan.node_id), {})
        configs = dict(plan.configs)
        for key, given in noted.get("given", {}).items():
            if configs.get(key) == noted["asked"].get(key):
                configs[key] = given
        found.append(
            replace(
                plan,
                configs=configs,
                store_port=noted.get("store_port", 0),
                former_pid=noted.get("pid", 0),
                former_secret_digest=noted.get("secret_digest", ""),
            )
        )
    return found


def replicas_beyond(config: BrokerConfig, count: int) -> Iterator[str]:
    """Warnings of configured replica numbers that exceed the number of brokers. (A minimum of the ISR above the number
    of a topic's replicas is as good as that number.)"""
    for key, consequence in (
        (BrokerConfig.default_replication_factor, "only topics with a replication factor of their own can be created"),
        (
            BrokerConfig.min_insync_replicas,
            "acks=all needs every replica of a topic, and is refused while one of them is out of sync",
        ),
        (BrokerConfig.offsets_topic_replication_factor, "consumer groups wait for more brokers"),
        (BrokerConfig.transaction_state_log_replication_factor, "transactions wait for more brokers"),
        (
            BrokerConfig.transaction_state_log_min_isr,
            "transactions need every replica of __transaction_state, and wait while one of them is out of sync",
        ),
    ):
        if (wanted := getattr(config, key.attribute)) > count:
            there = f"there {'is' if count == 1 else 'are'} only {count} broker{'s' * (count != 1)}"
            yield f"{key.name} is {wanted}, but {there}: {consequence}"


def _plan(config: BrokerConfig, directories: Sequence[str], node_id: int, count: int) -> BrokerPlan:
    """The plan of the broker with this id: addresses and directories are those of the first one, counted up. Port 0
    stays."""
    step = node_id - config.node_id
    own = [broker_directory(directory, node_id) for directory in directories]
    listeners = [_address(each.name, each.host, _counted(each.port, step)) for each in config.listeners]
    of_brokers = _address(BROKERS_LISTENER, "127.0.0.1", 0)
    configs = {
        "node.id": str(node_id),
        "log.dirs": ",".join(own),
        "listeners": ",".join([*listeners, of_brokers]),
        "listener.security.protocol.map": f"{config.listener_security_protocol_map},{BROKERS_LISTENER}:PLAINTEXT",
        "inter.broker.listener.name": BROKERS_LISTENER,
        "zookeeper.connect": "127.0.0.1:0",
        **_smaller_topics(config, count),
    }
    if config.raw.get("advertised.listeners", "").strip():
        advertised = [
            _address(each.name, each.advertised_host, _counted(each.advertised_port or each.port, step))
            for each in config.listeners
            if each.advertised
        ]
        configs["advertised.listeners"] = ",".join([*advertised, of_brokers])  # at the port that it gets
    if config.barnabas_http_address:
        host, port = parse_address(config.barnabas_http_address)
        configs["barnabas.http.address"] = f"{_host(host)}:{_counted(port, step)}"
    return BrokerPlan(node_id, configs, 0, own)


def _smaller_topics(config: BrokerConfig, count: int) -> dict[str, str]:
    """With fewer than three brokers, internal topics have as many replicas as brokers, unless configured otherwise."""
    replicas = min(3, count)
    wanted = {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(2, replicas),
    }
    return {key: str(value) for key, value in wanted.items() if key not in config.raw}


def _counted(port: int, step: int) -> int:
    if port and port + step > PORT_MAX:
        raise ConfigError([f"--brokers: port {port + step} would be above {PORT_MAX}"])
    return port + step if port else 0


def _address(name: str, host: str | None, port: int) -> str:
    return f"{name}://{_host(host)}:{port}"


def _host(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or ""
