"""`barnabas serve --brokers N`: a cluster on this machine, of a parent and a process for each broker.

The parent holds the metadata store and serves it by ZooKeeper's protocol on loopback. It imports the modules that a
broker needs before it forks one, so that brokers start at once and share that memory. It forks only between two runs of
its event loop: a broker begins with nothing running, and closes all inherited descriptors. The parent gives it the
secret that brokers send each other on a listener of their own (docs/decisions/0017-brokers-know-brokers.md).

A new parent finds the brokers that have survived a former one by `brokers.json` beside the store's file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from barnabas.broker.cli.cluster_directory import (
    broker_directory,
    is_of_one_broker,
    kept_secret,
    left_out,
    new_secret,
)
from barnabas.broker.cli.serve import EXIT_FAILURE, EXIT_USAGE, read_configuration, refuse, serve_one
from barnabas.broker.configuration.config import BrokerConfig, ConfigError, default_data_directory, parse_address
from barnabas.broker.configuration.listeners import BROKERS_LISTENER, PORT_MAX
from barnabas.broker.observability import logs
from barnabas.broker.security.broker_secrets import digest_of

logger = logging.getLogger(__name__)

BROKERS_MAX: Final = 100

NODE_ID_MAX: Final = 2**31 - 1

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""The signals that the parent handles, and that a broker has to handle itself."""

_NEEDED_BY_BROKERS: Final = (
    "kazoo.client",
    "barnabas.broker.cli.process",
    "barnabas.broker.other_brokers",
    "barnabas.controller.coordination.zookeeper",
)


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


def main(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the cluster until SIGTERM or SIGINT; exit status as `barnabas serve`."""
    try:
        count = _count(options.brokers)
        config = _base_configuration(options, environ)
        if (last := config.node_id + count - 1) > NODE_ID_MAX:
            raise ConfigError([f"--brokers: node.id {last} would be above {NODE_ID_MAX}"])
        directories = base_directories(config, environ)
        plans = [
            _plan(config, directories, node_id, count) for node_id in range(config.node_id, config.node_id + count)
        ]
        resolutions = [read_configuration(options, environ, plan.configs) for plan in plans]
        for resolution in resolutions:
            if resolution.config is None:
                return refuse(resolution.errors)
    except ConfigError as error:
        return refuse(error.problems)
    logs.configure(config.barnabas_log_level, config.barnabas_log_format)
    for warning in _beyond(resolutions[0].config, count):
        logger.warning("%s", warning)
    try:
        os.makedirs(directories[0], exist_ok=True)
        _require_a_cluster(directories)
    except (OSError, ConfigError) as error:
        sys.stderr.write(f"barnabas: {logs.escape(_sentence(error))}\n")
        return EXIT_FAILURE if isinstance(error, OSError) else EXIT_USAGE
    for warning in left_out(directories, [plan.node_id for plan in plans]):
        logger.warning("%s", warning)
    for module in _NEEDED_BY_BROKERS:
        importlib.import_module(module)
    with contextlib.suppress(ImportError):  # `event_loops.py` works without it
        importlib.import_module("uvloop")
    return _run(options, environ, Path(directories[0]), plans)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


# -- plans


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= BROKERS_MAX:
        raise ConfigError([f"--brokers {text}: expected a number of 1 to {BROKERS_MAX}"])
    return int(text)


def _base_configuration(options: argparse.Namespace, environ: Mapping[str, str]) -> BrokerConfig:
    """The configuration of the first broker, without the settings that differ between brokers."""
    resolution = read_configuration(options, environ)
    if resolution.config is None:
        raise ConfigError(resolution.errors)
    if resolution.config.zookeeper_connect is not None:
        raise ConfigError(
            ["--brokers: the metadata store is the parent's own, so leave zookeeper.connect (--zookeeper) out"]
        )
    return resolution.config


def base_directories(config: BrokerConfig, environ: Mapping[str, str]) -> list[str]:
    """The cluster's directories: below `log.dirs`, or the default directory of a cluster if that is not set."""
    directories = list(config.log_dirs)
    if directories == [os.path.abspath(default_data_directory(environ, config.node_id))]:
        return [os.path.join(os.path.dirname(directories[0]), "cluster")]
    return directories


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


def _beyond(config: BrokerConfig | None, count: int) -> Iterator[str]:
    """Warnings of configured replica numbers that exceed the number of brokers. (A minimum of the ISR above the number
    of a topic's replicas is as good as that number.)"""
    assert config is not None
    for key, consequence in (
        (BrokerConfig.default_replication_factor, "no topic can be created that does not name a factor of its own"),
        (
            BrokerConfig.min_insync_replicas,
            "acks=all takes every replica of a topic, and is refused while one of them is out of sync",
        ),
        (BrokerConfig.offsets_topic_replication_factor, "consumer groups wait for more brokers"),
        (BrokerConfig.transaction_state_log_replication_factor, "transactions wait for more brokers"),
        (
            BrokerConfig.transaction_state_log_min_isr,
            "transactions take every replica of __transaction_state, and wait while one of them is out of sync",
        ),
    ):
        if (wanted := getattr(config, key.attribute)) > count:
            yield f"{key.name} of {wanted}: there are no more brokers than --brokers {count}, so {consequence}"


def _counted(port: int, step: int) -> int:
    if port and port + step > PORT_MAX:
        raise ConfigError([f"--brokers: port {port + step} would be above {PORT_MAX}"])
    return port + step if port else 0


def _address(name: str, host: str | None, port: int) -> str:
    return f"{name}://{_host(host)}:{port}"


def _host(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or ""


def _require_a_cluster(directories: Sequence[str]) -> None:
    for directory in directories:
        if is_of_one_broker(directory):
            raise ConfigError(
                [f"{directory} is the directory of one broker, not of a cluster: choose another one (--data-dir)"]
            )


# -- the note of a former parent


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


# -- the processes


def _run(options: argparse.Namespace, environ: Mapping[str, str], directory: Path, plans: Sequence[BrokerPlan]) -> int:
    from barnabas.broker.cli.process import look_for_garbage
    from barnabas.broker.cli.supervisor import Supervisor
    from barnabas.controller.coordination.interface import StoreUnavailable
    from barnabas.storage.os_files import OsFiles

    OsFiles().descriptor_limit()  # as many connections to the store as the system allows, as in a broker
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    supervisor = Supervisor(loop, directory, plans)
    try:
        loop.run_until_complete(supervisor.open())
        secret = kept_secret(directory) or new_secret(directory)
        supervisor.agree_on_secret(digest_of(secret))
        gc.collect()
        look_for_garbage()  # present objects are exempt, and shared with the brokers as long as they are not written to
        while (start := loop.run_until_complete(supervisor.next_start())) is not None:
            try:
                pid, output = _fork(options, environ, start, secret)
            except OSError as error:
                supervisor.could_not_start(start, _sentence(error))
            else:
                supervisor.started(start, pid, output)
        return supervisor.status
    except (StoreUnavailable, OSError) as error:
        logger.critical("%s", _sentence(error))
        return EXIT_FAILURE
    finally:
        supervisor.close()
        loop.close()


def _fork(options: argparse.Namespace, environ: Mapping[str, str], plan: BrokerPlan, secret: str) -> tuple[int, int]:
    """Start a broker's process; returns its id, and a descriptor of its output. Raises: OSError.

    A signal that the new process receives while it still has this one's handlers, which do not apply to it, waits until
    it has its own.
    """
    read_end, write_end = os.pipe()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _become_a_broker(options, environ, plan, secret, write_end)
    except OSError:
        os.close(read_end)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(write_end)
    return pid, read_end


def _become_a_broker(
    options: argparse.Namespace, environ: Mapping[str, str], plan: BrokerPlan, secret: str, output: int
) -> None:
    """Serve as a broker in the new process; does not return. The process has a session of its own, so that Ctrl-C
    reaches the parent alone, and its output goes to `output`. The secret is only in its memory."""
    from barnabas.broker.environment import Environment

    status = EXIT_FAILURE
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.dup2(output, 1)
        _close_all_but_standard()
        asyncio.set_event_loop(None)
        gc.disable()
        environment = Environment(broker_secret=secret)
        status = serve_one(options, environ, environment, also=plan.configs, label=f"broker {plan.node_id}:")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else EXIT_FAILURE
    except Exception:  # before the broker starts, which logs its own errors
        logger.critical("broker %d could not start", plan.node_id, exc_info=True)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _close_all_but_standard() -> None:
    """Close the store's file, its ports and all other descriptors of the parent."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
