"""Addresses with port 0: each broker of `serve --brokers N` gets a free port instead, and keeps it."""

from __future__ import annotations

import contextlib
import errno
import logging

from barnabas.network import OsNetwork

logger = logging.getLogger(__name__)


def still_to_be_had(asked: str, given: str, taken: contextlib.ExitStack) -> str:
    """The noted addresses for the configured ones; the configured ones if another program has meanwhile taken a port
    that replaced 0."""
    for each, address in zip(asked.split(","), given.split(","), strict=False):
        if asked == given or not each.endswith(":0"):
            continue
        host, _, port = address.rpartition("://")[2].rpartition(":")
        try:
            taken.callback(OsNetwork().bind(host.strip("[]") or None, int(port)).close)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                logger.warning("another program has taken %s: other free ports are chosen for %s", address, asked)
                return asked
        except (ValueError, OverflowError):
            return asked  # the note was edited
    return given


def with_free_ports(addresses: str, taken: contextlib.ExitStack) -> str:
    """Listeners, or HOST:PORT, with each port 0 replaced by a free one: a restarted broker needs its former address.
    Until `taken` is closed no other program gets these ports; another broker of ours could get one, one time in some
    thousand.
    """
    parts = []
    for each in addresses.split(","):
        name, separator, address = each.rpartition("://")
        host, _, port = address.rpartition(":")
        parts.append(f"{name}{separator}{host}:{port if port != '0' else _free_port(host.strip('[]'), taken)}")
    return ",".join(parts)


def _free_port(host: str, taken: contextlib.ExitStack) -> int:
    bound = OsNetwork().bind(host or None, 0)
    taken.callback(bound.close)
    return bound.port
