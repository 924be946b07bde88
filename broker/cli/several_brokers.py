"""`barnabas serve --brokers N`: a cluster on this machine, of a parent and a process for each broker.

The parent holds the metadata store and serves it by ZooKeeper's protocol on loopback. It imports the modules that a
broker needs before it forks one, so that brokers start at once and share that memory. It forks only between two runs of
its event loop: a broker begins with nothing running, and closes all inherited descriptors. The parent gives it the
secret that brokers send each other on a listener of their own (docs/decisions/0017-brokers-know-brokers.md). With
`--secure` (`secure.py`), clients' listeners have TLS and users, and that one stays as it is.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.cli.broker_plans import (
    BrokerPlan,
    base_directories,
    broker_count,
    broker_plans,
    replicas_beyond,
)
from barnabas.broker.cli.cluster_directory import is_of_one_broker, kept_secret, left_out, new_secret
from barnabas.broker.cli.one_broker import EXIT_FAILURE, EXIT_USAGE, read_configuration, refuse, serve_one
from barnabas.broker.client.errors import ClientError
from barnabas.broker.configuration.config import BrokerConfig, ConfigError, parse_address
from barnabas.broker.observability import logs
from barnabas.broker.security.broker_secrets import digest_of

if TYPE_CHECKING:
    from barnabas.broker.cli.one_broker import Run
    from barnabas.broker.cli.secure import Secured

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""The signals that the parent handles, and that a broker has to handle itself."""

_NEEDED_BY_SECURED: Final = ("barnabas.broker.security.tls.contexts", "barnabas.broker.security.sasl.making")
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
        plans, config = _plans(options, environ, count)
        directories = base_directories(_base_configuration(options, environ), environ)
    except ConfigError as error:
        return refuse(error.problems)
    logs.configure(config.barnabas_log_level, config.barnabas_log_format)
    for warning in replicas_beyond(config, count):
        logger.warning("%s", warning)
    try:
        os.makedirs(directories[0], exist_ok=True)
        _require_a_cluster(directories)
    except (OSError, ConfigError) as error:
        sys.stderr.write(f"barnabas: {logs.escape(_sentence(error))}\n")
        return EXIT_FAILURE if isinstance(error, OSError) else EXIT_USAGE
    for warning in left_out(directories, [plan.node_id for plan in plans]):
        logger.warning("%s", warning)
    secured = None
    if options.secure is not None:
        from barnabas.broker.cli.secure import could_not_secure

        try:
            secured = _secure(options, environ, directories[0])
            plans, config = _plans(options, environ, count, secured.of_cluster)
        except ConfigError as error:
            return refuse(error.problems)
        except (ClientError, OSError) as error:
            return could_not_secure(error)
    for module in (*_NEEDED_BY_BROKERS, *(() if secured is None else _NEEDED_BY_SECURED)):
        importlib.import_module(module)
    with contextlib.suppress(ImportError):  # `event_loops.py` works without it
        importlib.import_module("uvloop")
    on_ready = _tell_nobody if secured is None else partial(_tell_clients, secured, has_http_tls=config.has_http_tls)
    return _run(options, environ, Path(directories[0]), plans, secured, on_ready)


def _plans(
    options: argparse.Namespace, environ: Mapping[str, str], count: int, shared: Mapping[str, str] | None = None
) -> tuple[list[BrokerPlan], BrokerConfig]:
    """The plans of all brokers, which have the `shared` configs, too, and the configuration of the first one.

    Raises: ConfigError.
    """
    config = _base_configuration(options, environ, shared)
    plans = [
        replace(plan, configs={**(shared or {}), **plan.configs})
        for plan in broker_plans(config, base_directories(config, environ), count)
    ]
    brokers = []
    for plan in plans:
        resolution = read_configuration(options, environ, plan.configs, _unless_set(options))
        if resolution.config is None:
            raise ConfigError(resolution.errors)
        brokers.append(resolution.config)
    return plans, brokers[0]


def _base_configuration(
    options: argparse.Namespace, environ: Mapping[str, str], shared: Mapping[str, str] | None = None
) -> BrokerConfig:
    """The configuration of the first broker, without the settings that differ between brokers. Raises: ConfigError."""
    resolution = read_configuration(options, environ, shared, _unless_set(options))
    if resolution.config is None:
        raise ConfigError(resolution.errors)
    if resolution.config.zookeeper_connect is not None:
        raise ConfigError(
            ["--brokers: the metadata store is the parent's own, so leave zookeeper.connect (--zookeeper) out"]
        )
    return resolution.config


def _unless_set(options: argparse.Namespace) -> Mapping[str, str] | None:
    if options.secure is None:
        return None
    from barnabas.broker.cli.secure import MECHANISMS_BEFORE

    return MECHANISMS_BEFORE


def _secure(options: argparse.Namespace, environ: Mapping[str, str], data_directory: str) -> Secured:
    """Make what the directory of `--secure` lacks: one authority, one certificate of this machine, and the users, for
    all brokers. Raises: ConfigError, ClientError, OSError."""
    from barnabas.broker.cli.secure import directory_of, secure

    return secure(directory_of(options.secure, data_directory), _base_configuration(options, environ))


def _tell_nobody(addresses: str, plans: Sequence[BrokerPlan]) -> None:
    """Nothing: clients need no more than the addresses."""


def _tell_clients(secured: Secured, addresses: str, plans: Sequence[BrokerPlan], *, has_http_tls: bool) -> None:
    """Write the files of clients, with the addresses of all brokers, and print what to paste. Each broker issues
    tokens: the first one is named."""
    from barnabas.broker.cli.secure import tell, token_url

    servers = ",".join(address.partition("://")[2] for address in addresses.split(","))
    http_address = plans[0].configs.get("barnabas.http.address")
    port = None if http_address is None else parse_address(http_address)[1]
    tell(secured, servers, token_url(port, has_tls=has_http_tls))


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


def _run(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    directory: Path,
    plans: Sequence[BrokerPlan],
    secured: Secured | None,
    on_ready: Callable[[str, Sequence[BrokerPlan]], None],
) -> int:
    from barnabas.broker.cli.process import look_for_garbage
    from barnabas.broker.cli.supervisor import Supervisor
    from barnabas.controller.coordination.interface import StoreUnavailable
    from barnabas.storage.os_files import OsFiles

    OsFiles().descriptor_limit()  # as many connections to the store as the system allows, as in a broker
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    supervisor = Supervisor(loop, directory, plans, on_ready)
    started: set[int] = set()
    try:
        loop.run_until_complete(supervisor.open())
        secret = kept_secret(directory) or new_secret(directory)
        supervisor.agree_on_secret(digest_of(secret))
        gc.collect()
        look_for_garbage()  # present objects are exempt, and shared with the brokers as long as they are not written to
        while (start := loop.run_until_complete(supervisor.next_start())) is not None:
            given = secured.later if secured is not None and start.node_id in started else secured
            try:
                pid, output = _fork(options, environ, start, secret, given)
            except OSError as error:
                supervisor.could_not_start(start, _sentence(error))
            else:
                started.add(start.node_id)
                supervisor.started(start, pid, output)
        return supervisor.status
    except (StoreUnavailable, OSError) as error:
        logger.critical("%s", _sentence(error))
        return EXIT_FAILURE
    finally:
        supervisor.close()
        loop.close()


def _fork(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    plan: BrokerPlan,
    secret: str,
    secured: Secured | None,
) -> tuple[int, int]:
    """Start a broker's process; returns its id, and a descriptor of its output. Raises: OSError.

    A signal that the new process receives while it still has this one's handlers, which do not apply to it, waits until
    it has its own.
    """
    read_end, write_end = os.pipe()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _become_a_broker(options, environ, plan, secret, secured, write_end)
    except OSError:
        os.close(read_end)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(write_end)
    return pid, read_end


def _become_a_broker(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    plan: BrokerPlan,
    secret: str,
    secured: Secured | None,
    output: int,
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
        run = None if secured is None else _secured_run(secured)
        status = serve_one(options, environ, environment, also=plan.configs, label=f"broker {plan.node_id}:", run=run)
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


def _secured_run(secured: Secured) -> Run:
    """A broker's program that adds the first users, and issues tokens."""
    from barnabas.broker.cli.process import run
    from barnabas.broker.cli.secure import prepare

    return partial(run, prepare=partial(prepare, secured))


def _close_all_but_standard() -> None:
    """Close the store's file, its ports and all other descriptors of the parent."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
