"""`barnabas serve`: configuration in, broker up, exit status out.

Made with argparse, unlike the other commands: a broker's start must not wait for typer and rich.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from barnabas.broker.configuration.config import BrokerConfig, ConfigError, Resolution, parse_address, resolve
from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties
from barnabas.broker.observability import logs

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
EXIT_USAGE = 2

_DESCRIPTION = """\
Run a broker in the foreground until SIGTERM or Ctrl-C. When clients may connect it prints one line on standard output,
`ready: PLAINTEXT://HOST:PORT node.id=N cluster.id=ID`; log lines go to standard error.
"""

_EPILOG = """\
Configuration is Kafka's. Each key is taken from the first of these that sets it: the options above, --override,
environment variables (KAFKA_LOG_RETENTION_MS is log.retention.ms; CLUSTER_ID names a new cluster), the file, the
default. `barnabas config check FILE` says what a file means without starting.

examples:
  barnabas serve                                          on 127.0.0.1:9092, data in ~/.local/share/barnabas/1
  barnabas serve --listen 127.0.0.1:0 --data-dir /tmp/b   any free port; the ready line tells which
  barnabas serve server.properties --node-id 2            Kafka's own file, with another id
  barnabas serve --override log.retention.ms=3600000 --override auto.create.topics.enable=false
  barnabas serve --zookeeper 127.0.0.1:2181/kafka         metadata in ZooKeeper, where Kafka 3.9 has it
  barnabas serve --listen :9092 --http :8080              all addresses, with /healthz, /readyz and /metrics
  KAFKA_NUM_PARTITIONS=3 barnabas serve                   as with the official image
"""

_SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits for a thread that is busy with records (Python's default is ten times as much, and one
request takes several turns)."""


def parser() -> argparse.ArgumentParser:
    """The options of `barnabas serve`."""
    result = argparse.ArgumentParser(
        prog="barnabas serve",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("server_properties", nargs="?", type=Path, help="Kafka's configuration file")
    result.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="set one key; may be given many times"
    )
    result.add_argument("--listen", metavar="HOST:PORT", help="where clients connect; port 0 takes a free one")
    result.add_argument("--data-dir", metavar="DIR", help="where topics are kept (log.dirs)")
    result.add_argument("--node-id", metavar="N", help="this broker's id (node.id)")
    result.add_argument(
        "--zookeeper", metavar="CONNECT", help="HOST:PORT,.../chroot: keep the metadata there, as Kafka 3.x does"
    )
    result.add_argument("--http", metavar="HOST:PORT", help="serve /healthz, /readyz and /metrics; off by default")
    result.add_argument("--log-level", metavar="L", help="DEBUG, INFO, WARNING or ERROR (default INFO)")
    result.add_argument("--log-format", metavar="F", help="text or json (default text)")
    return result


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Start a broker; returns when it has stopped.

    Exit status: 0 after a clean stop, 1 when it could not start or go on, 2 when options or configuration are wrong.
    """
    options = parser().parse_args(arguments)
    try:
        resolution = read_configuration(options, os.environ if environ is None else environ)
    except ConfigError as error:
        return _refuse(error.problems)
    if resolution.config is None:
        return _refuse(resolution.errors)
    config = resolution.config
    logs.configure(config.barnabas_log_level, config.barnabas_log_format)
    for warning in resolution.warnings:
        logger.warning("%s", warning)
    for note in resolution.notes:
        logger.info("%s", note)
    return _run(config)


def read_configuration(options: argparse.Namespace, environ: Mapping[str, str]) -> Resolution:
    """All sources of configuration, merged and checked.

    Errors: ConfigError where a source cannot be read at all; what is wrong with keys and values is in the result.
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
    named |= {
        key: value
        for key, value in (
            ("log.dirs", options.data_dir),
            ("node.id", options.node_id),
            ("zookeeper.connect", options.zookeeper),
            ("barnabas.http.address", options.http),
            ("barnabas.log.level", options.log_level),
            ("barnabas.log.format", options.log_format),
        )
        if value is not None
    }
    return resolve(options=named, overrides=overrides, environ=environ, properties=properties)


def listener_of(address: str) -> str:
    """The value of `listeners` for --listen; 0.0.0.0 means all addresses, as no host does. Errors: ValueError."""
    host, port = parse_address(address)
    if host in (None, "0.0.0.0", "::"):
        host = ""
    return f"PLAINTEXT://[{host}]:{port}" if host and ":" in host else f"PLAINTEXT://{host}:{port}"


def read_properties_file(path: Path) -> dict[str, str]:
    """The keys and values of a properties file. Errors: ConfigError that names the file."""
    try:
        return parse_properties(decode_properties(path.read_bytes()))
    except PropertiesError as error:
        raise ConfigError([f"{path}, {error}"]) from error
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}"]) from error


def _refuse(problems: Sequence[str]) -> int:
    lines = [f"barnabas: the configuration cannot be used ({len(problems)} problem{'s' * (len(problems) > 1)}):"]
    lines += [f"  - {logs.escape(problem)}" for problem in problems]
    sys.stderr.write("\n".join(lines) + "\n")
    return EXIT_USAGE


def _run(config: BrokerConfig) -> int:
    import asyncio

    import uvloop

    from barnabas.broker.cluster.metadata_store import OtherBrokersInCluster
    from barnabas.broker.server import run
    from barnabas.controller.bootstrap import ClusterIdMismatch
    from barnabas.controller.controller_election import ControllerElsewhere
    from barnabas.controller.coordination.interface import CoordinationError
    from barnabas.controller.registration import BrokerIdInUse
    from barnabas.controller.znodes import DamagedZnode
    from barnabas.storage.errors import DirectoryLocked, DirectoryMismatch
    from barnabas.wire.errors import ApiError

    refusals = (
        ApiError, BrokerIdInUse, ClusterIdMismatch, ConfigError, ControllerElsewhere, CoordinationError, DamagedZnode,
        DirectoryLocked, DirectoryMismatch, OSError, OtherBrokersInCluster,
    )  # fmt: skip
    try:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            return runner.run(run(config))
        finally:
            # asyncio ends its threads from a new one; if there is none to be had, they end with the process.
            with contextlib.suppress(RuntimeError):
                runner.close()
    except refusals as error:
        # What an operator can do something about: one sentence, no traceback.
        logger.critical("%s", _sentence(error))
    except KeyboardInterrupt:
        return EXIT_FAILURE  # before the broker handles signals itself
    except Exception:
        logger.critical("the broker failed", exc_info=True)
    return EXIT_FAILURE


def _sentence(error: Exception) -> str:
    message = getattr(error, "message", "") or str(error)
    return message or type(error).__name__
