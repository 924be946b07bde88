"""`barnabas serve` without --brokers: reads the configuration, runs one broker, returns the exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import barnabas
from barnabas.broker.cli.cluster_directory import not_of_one_broker
from barnabas.broker.configuration.config import BrokerConfig, ConfigError, Resolution, parse_address, resolve
from barnabas.broker.configuration.properties import Properties, PropertiesError, decode_properties, parse_properties
from barnabas.broker.observability import logs
from barnabas.clock import SystemClock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from barnabas.broker.environment import Environment

    Run: TypeAlias = Callable[[BrokerConfig, Environment | None], Coroutine[Any, Any, int]]

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
EXIT_USAGE = 2

_SWITCH_INTERVAL_S = 0.0005
"""The time for which the event loop waits for a thread that is busy with records (Python's default is ten times as
much, and one request takes several turns)."""


def serve_one(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    environment: Environment | None = None,
    also: Mapping[str, str] | None = None,
    label: str = "",
    run: Run | None = None,
) -> int:
    """Start a broker as `main`. Keys and values in `also` take precedence over all others; `label` marks its log lines;
    `run` runs another program than a single broker with the configuration."""
    try:
        resolution = read_configuration(options, environ, also)
    except ConfigError as error:
        return refuse(error.problems)
    if resolution.config is None:
        return refuse(resolution.errors)
    config = resolution.config
    has_own_store = config.zookeeper_connect is None
    if (reason := not_of_one_broker(config.log_dirs, config.node_id, has_own_store=has_own_store)) is not None:
        sys.stderr.write(f"barnabas: {logs.escape(reason)}\n")
        return EXIT_USAGE
    logs.configure(config.barnabas_log_level, config.barnabas_log_format, label=label)
    logger.info("%s", _introduction(config, options))
    for warning in resolution.warnings:
        logger.warning("%s", warning)
    for note in resolution.notes:
        logger.info("%s", note)
    return _run(config, environment, run)


def read_configuration(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    also: Mapping[str, str] | None = None,
    unless_set: Mapping[str, str] | None = None,
) -> Resolution:
    """All sources of configuration, merged and checked; keys in `also` take precedence over all others, and all others
    over those in `unless_set`.

    Errors: ConfigError if a source cannot be read at all; errors of keys and values are in the result.
    """
    problems: list[str] = []
    properties: Mapping[str, str] = {}
    if options.server_properties is not None:
        try:
            properties = read_properties_file(options.server_properties)
        except ConfigError as error:
            problems += error.problems
    overrides = {}
    for override in options.override:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"--override {override}: expected KEY=VALUE")
        overrides[key.strip()] = value.strip()
    named = {}
    if options.listen is not None:
        try:
            named["listeners"] = listener_of(options.listen)
        except ValueError as error:
            problems.append(f"--listen {options.listen}: {error}")
    if problems:
        raise ConfigError(problems)
    as_given = {"listeners": f"--listen {options.listen}"}
    for key, option, value in (
        ("log.dirs", "--data-dir", options.data_dir),
        ("node.id", "--node-id", options.node_id),
        ("zookeeper.connect", "--zookeeper", options.zookeeper),
        ("barnabas.http.address", "--http", options.http),
        ("barnabas.log.level", "--log-level", options.log_level),
        ("barnabas.log.format", "--log-format", options.log_format),
    ):
        if value is not None:
            named[key], as_given[key] = value, f"{option} {value or repr('')}"
    named |= also or {}
    return resolve(
        options=named,
        overrides=overrides,
        environ=environ,
        properties=properties,
        options_as_given=as_given,
        unless_set=unless_set,
    )


def listener_of(address: str) -> str:
    """The value of `listeners` for --listen; 0.0.0.0 means all addresses, as no host does. Errors: ValueError."""
    host, port = parse_address(address)
    if host in (None, "0.0.0.0", "::"):
        host = ""
    return f"PLAINTEXT://[{host}]:{port}" if host and ":" in host else f"PLAINTEXT://{host}:{port}"


def read_properties_file(path: Path) -> Properties:
    """The keys and values of a properties file. Errors: ConfigError that names the file."""
    try:
        return parse_properties(decode_properties(path.read_bytes()))
    except PropertiesError as error:
        raise ConfigError([f"{path}, {error}"]) from error
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}"]) from error


def refuse(problems: Sequence[str]) -> int:
    """Print the errors of a configuration; returns the exit status."""
    lines = [f"barnabas: the configuration cannot be used ({len(problems)} problem{'s' * (len(problems) > 1)}):"]
    lines += [f"  - {logs.escape(problem)}" for problem in problems]
    sys.stderr.write("\n".join(lines) + "\n")
    return EXIT_USAGE


def _introduction(config: BrokerConfig, options: argparse.Namespace) -> str:
    """The first line of the log: the process, its configuration file, its directories and its metadata store."""
    path: Path | None = options.server_properties
    has_directory = options.control is None or not config.raw.keys().isdisjoint(("log.dir", "log.dirs"))
    data = ", ".join(config.log_dirs) if has_directory else "a temporary directory"
    store = "SQLite in the data directory" if len(config.log_dirs) == 1 else "SQLite in one of the data directories"
    if config.zookeeper_connect is not None:
        store = f"ZooKeeper at {config.zookeeper_connect}"
    return (
        f"barnabas {barnabas.__version__}, pid {os.getpid()}, "
        f"{'no configuration file' if path is None else f'configuration file {path.absolute()}'}, "
        f"data in {data}, coordination store: {store}"
    )


def _run(config: BrokerConfig, environment: Environment | None, other: Run | None) -> int:
    import asyncio

    from barnabas.broker.cli.process import run
    from barnabas.broker.event_loops import new_event_loop

    try:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        runner = asyncio.Runner(loop_factory=new_event_loop)
        try:
            return runner.run((other or run)(config, environment))
        finally:
            # asyncio ends its threads from a new one; if none is available, they end with the process.
            with contextlib.suppress(RuntimeError):
                runner.close()
    except refusals_of_a_start() as error:
        logger.critical("%s", _sentence(error, config))
        if isinstance(error, ConfigError):
            return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_FAILURE  # before the broker handles signals itself
    except Exception:
        logger.critical("the broker failed", exc_info=True)
    finally:
        logs.tell_what_is_due(SystemClock().now_ms() / 1000, is_end=True)
    return EXIT_FAILURE


def refusals_of_a_start() -> tuple[type[Exception], ...]:
    """Errors of a start that the user can correct: one sentence, no traceback."""
    from barnabas.controller.bootstrap import ClusterIdMismatch
    from barnabas.controller.coordination.interface import CoordinationError
    from barnabas.controller.registration import BrokerIdInUse
    from barnabas.controller.znodes import DamagedZnode
    from barnabas.storage.errors import DirectoryLocked, DirectoryMismatch
    from barnabas.wire.errors import ApiError

    return (
        ApiError, BrokerIdInUse, ClusterIdMismatch, ConfigError, CoordinationError, DamagedZnode,
        DirectoryLocked, DirectoryMismatch, OSError,
    )  # fmt: skip


def _sentence(error: Exception, config: BrokerConfig) -> str:
    message = getattr(error, "message", "") or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:  # without its number
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if _lacks_room(error):
        directories = ", ".join(config.log_dirs)
        message += (
            f". Make room on the disk of {directories}, or give this broker another directory (--data-dir, log.dirs)"
        )
    return message


def _lacks_room(error: Exception) -> bool:
    """Whether a full disk is the cause, including errors of SQLite."""
    import errno
    import sqlite3

    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
