"""TLS and logins: large batches, records one at a time, and connections one after the other."""

import contextlib
import secrets
import socket
import ssl
import time

from barnabas.broker.security.sasl.scram import Client
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from benchmarks.clients import TIMEOUT_S, create_topics, one_by_one_ms
from benchmarks.java_tools import LARGE_BATCHES, consume, produce
from benchmarks.model import Figure, Figures, Scale, Workload, at_least, at_most
from benchmarks.processes import CpuUse, resident
from benchmarks.secured import MECHANISM, USER, over_tls, with_logins
from benchmarks.spread import percentile
from benchmarks.system import Secured, System
from tools.attack.hostile import ask, connect


class _Refused(Exception):
    """The broker does not let a client in."""


def large_batches(system: System, scale: Scale) -> Figures:
    """W26: what TLS 1.3 costs per byte; nothing is sent by `sendfile` then."""
    records, size = scale.of(2_000_000, 60_000), 1024
    with over_tls(system) as server:
        create_topics(server, 1, "warm-up", "measured")
        produce(server, "warm-up", records // 2, size, LARGE_BATCHES)
        consume(server, "warm-up", records // 2)
        with CpuUse(server) as cpu:
            produced = produce(server, "measured", records, size, LARGE_BATCHES)
        yield Figure("produce: throughput", produced.mib_per_second, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("produce", records * size, at_most(0.6))
        with CpuUse(server) as cpu:
            throughput = consume(server, "measured", records)
        yield Figure("fetch: throughput", throughput, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("fetch", records * size, at_most(0.6))
        yield resident(server)


def one_at_a_time(system: System, scale: Scale) -> Figures:
    """W27: from a producer's send to a consumer's receipt, both logged in."""
    records, size = scale.of(20_000, 2_000), 1000
    with with_logins(system) as server:
        create_topics(server, 1, "warm-up", "measured")
        one_by_one_ms(server, "warm-up", records // 2, size)
        with CpuUse(server) as cpu:
            found = one_by_one_ms(server, "measured", records, size)
        yield Figure("p50", percentile(found, 50), "ms", (at_most(1.0),))
        yield Figure("p99", percentile(found, 99), "ms")
        yield cpu.per_requests("", records)
        yield resident(server)


def logins(system: System, scale: Scale) -> Figures:
    """W28: a handshake of TLS, a login and one request for each connection, the next one after that."""
    count = scale.of(1_000, 50)
    with with_logins(system) as server:
        # The client derives its key once: what it computes takes the same processors.
        client = Client(MECHANISM, USER, secrets.token_bytes)
        context = ssl.create_default_context(cafile=str(server.trusted))
        _wait_for_user(server, context, client)
        _log_in_in_turn(server, context, client, count)
        started_s = time.monotonic()
        with CpuUse(server) as cpu:
            _log_in_in_turn(server, context, client, count)
        yield Figure("time of a connection", (time.monotonic() - started_s) / count * 1000, "ms", (at_most(1.0),))
        yield Figure("CPU of a connection", cpu.seconds / count * 1000, "ms", (at_most(0.6),))
        yield resident(server)


def _wait_for_user(server: Secured, context: ssl.SSLContext, client: Client) -> None:
    """Return when the broker has heard of the user. Raises _Refused in the end."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            _log_in_in_turn(server, context, client, 1)
            return
        except _Refused:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


def _log_in_in_turn(server: Secured, context: ssl.SSLContext, client: Client, count: int) -> None:
    """Connect so many times. Raises _Refused."""
    host = server.bootstrap_servers.rpartition(":")[0]
    for _ in range(count):
        plain = connect(server.bootstrap_servers)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.closing(context.wrap_socket(plain, server_hostname=host)) as connection:
            _log_in(connection, client)


def _log_in(connection: socket.socket, client: Client) -> None:
    handshake = ask(connection, SaslHandshakeRequest(mechanism=client.name), 1, SaslHandshakeResponse)
    if handshake.error_code:
        raise _Refused(f"SaslHandshake: {handshake.error_code}")
    exchange = client.start()
    message: bytes | None = exchange.first()
    while message is not None:
        answer = ask(connection, SaslAuthenticateRequest(auth_bytes=message), 2, SaslAuthenticateResponse)
        if answer.error_code:
            raise _Refused(f"SaslAuthenticate: {answer.error_message}")
        message = exchange.answer(bytes(answer.auth_bytes))
    ask(connection, ApiVersionsRequest(), 0, ApiVersionsResponse)


LARGE_BATCHES_OVER_TLS = Workload("W26", "produce 128 KiB batches and fetch, TLS 1.3", large_batches)
ONE_AT_A_TIME = Workload("W27", "one record at a time, SASL_SSL with SCRAM-SHA-512", one_at_a_time)
LOGINS = Workload("W28", "1,000 connections in turn, SASL_SSL with SCRAM-SHA-512", logins)
