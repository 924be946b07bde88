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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from barnabas.broker.cli.broker_plans import (
    BrokerPlan,
    base_directories,
    broker_count,
    broker_plans,
    replicas_beyond,
)
from barnabas.broker.cli.cluster_directory import is_of_one_broker, kept_secret, left_out, new_secret
from barnabas.broker.cli.one_broker import EXIT_FAILURE, EXIT_USAGE, read_configuration, refuse, serve_one
from barnabas.broker.configuration.config import BrokerConfig, ConfigError
from barnabas.broker.observability import logs
from barnabas.broker.security.broker_secrets import digest_of

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""The signals that the parent handles, and that a broker has to handle itself."""

_NEEDED_BY_BROKERS: Final = (
    "kazoo.client",
    "barnabas.broker.cli.process",
    "barnabas.broker.other_brokers",
    "barnabas.controller.coordination.zookeeper",
)


def main(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the cluster until SIGTERM or SIGINT; exit status as `barnabas serve`."""
    try:
        count = broker_count(options.brokers)
        config = _base_configuration(options, environ)
        directories = base_directories(config, environ)
        plans = broker_plans(config, directories, count)
        brokers = []
        for plan in plans:
            resolution = read_configuration(options, environ, plan.configs)
            if resolution.config is None:
                return refuse(resolution.errors)
            brokers.append(resolution.config)
    except ConfigError as error:
        return refuse(error.problems)
    logs.configure(config.barnabas_log_level, config.barnabas_log_format)
    for warning in replicas_beyond(brokers[0], count):
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


def _require_a_cluster(directories: Sequence[str]) -> None:
    for directory in directories:
        if is_of_one_broker(directory):
            raise ConfigError(
                [f"{directory} is the directory of one broker, not of a cluster: choose another one (--data-dir)"]
            )


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


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
