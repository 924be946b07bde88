"""`barnabas serve --control HOST:PORT`: a broker as with `barnabas serve`, and a port at which tests request faults,
other brokers and everything else in `verbs.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.cli.one_broker import EXIT_USAGE, serve_one
from barnabas.broker.cli.process import End, look_for_garbage, ready_line, tell_what_is_due
from barnabas.broker.cli.ready import print_ready
from barnabas.broker.cli.serve import parser
from barnabas.broker.configuration.config import DEFAULT, BrokerConfig, ConfigError, parse_address
from barnabas.broker.observability import logs
from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.testing.brokers.broker import Broker
from barnabas.testing.control.served import MAIN, ServedBrokers
from barnabas.testing.control.server import HANDSHAKES_MAX, ControlServer, loopback_addresses
from barnabas.threads import OsThreads

if TYPE_CHECKING:
    import argparse

    from barnabas.broker.environment import Environment
    from barnabas.broker.network.port_tls import PortTls

logger = logging.getLogger(__name__)

CONTROL: Final = "CONTROL"
"""The name of the control port among the listeners, for its keys of TLS: they begin with `listener.name.control.`"""

TOKEN_VARIABLE: Final = "BARNABAS_CONTROL_TOKEN"
"""Not an option: every user of the machine can read those of a process."""


def main(
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; exit status as `barnabas serve`. There is no other environment than the machine's
    own.
    """
    options = parser().parse_args(arguments)
    environ = os.environ if environ is None else environ
    token = environ.get(TOKEN_VARIABLE)
    try:
        _check(options, token)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"barnabas: --control {logs.escape(options.control)}: {logs.escape(_sentence(error))}\n")
        return EXIT_USAGE
    warnings.simplefilter("ignore", UserWarning)  # brokers warn tests of their keywords: here responses contain that
    return serve_one(options, environ, run=partial(_run, options.control, token))


def _check(options: argparse.Namespace, token: str | None) -> None:
    """Refuse unsupported options. Raises ValueError, OSError."""
    if options.brokers is not None:
        raise ValueError("has all its brokers in one process: leave --brokers out, and POST /brokers")
    if options.secure is not None:
        raise ValueError("makes brokers without users, for tests on this machine: leave --secure out")
    if token is not None and not token.strip():
        raise ValueError(f"{TOKEN_VARIABLE} is empty: set it to a token, or leave it out for none")
    host, _ = parse_address(options.control)
    asyncio.run(loopback_addresses(host))


def _sentence(error: ValueError | OSError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


async def _run(address: str, token: str | None, config: BrokerConfig, environment: Environment | None) -> int:
    end = End()
    started = time.perf_counter()
    brokers = ServedBrokers()
    timers = Timers(SystemClock(), asyncio.get_running_loop())
    server = ControlServer(brokers, address, token, await _tls(config, timers))
    broker = Broker(configs=_configs(config))
    try:
        await asyncio.to_thread(brokers.start, broker, MAIN, config.warnings)
        await server.start()
        telling = asyncio.create_task(tell_what_is_due(broker.server.clock), name="log")
        look_for_garbage()
        print_ready(f"{ready_line(broker.server)} control={server.url}")
        logger.info("started in %.0f ms", (time.perf_counter() - started) * 1000)
        end.is_up = True
        await end.begun.wait()
        telling.cancel()
    finally:
        server.stop_listening()
        await asyncio.to_thread(brokers.stop_all)  # which ends the requests that wait for them
        await server.stop()
        timers.close()
    logger.info("stopped in %.0f ms", (time.perf_counter() - end.began) * 1000)
    end.ignore_signals()
    return end.status


async def _tls(config: BrokerConfig, timers: Timers) -> PortTls | None:
    """The TLS of the control port, if it has a key of its own. Raises ConfigError."""
    keys = (f"listener.name.{CONTROL.lower()}.ssl.keystore.{name}" for name in ("location", "key"))
    if all(config.text_of(key) is None for key in keys):
        return None
    from barnabas.broker.network.listener_tls import settings_of
    from barnabas.broker.network.port_tls import PortTls
    from barnabas.broker.security.tls.errors import TlsConfigError

    make = partial(PortTls, "the control port", settings_of(config, CONTROL), timers, OsThreads(), HANDSHAKES_MAX)
    try:
        return await asyncio.to_thread(make)
    except TlsConfigError as error:
        raise ConfigError([str(error)]) from error


def _configs(config: BrokerConfig) -> dict[str, str]:
    """Without a configured data directory it is temporary, so that it can be reset."""
    listeners = ",".join(f"{each.name}://{each.host or ''}:{each.port}" for each in config.listeners)
    return {"listeners": listeners, **config.raw} if config.source("listeners") == DEFAULT else dict(config.raw)
