"""The brokers and topics that a program needs, checked before Spark starts: one line says what is missing.

Spark itself takes minutes to find out that nobody listens, and tells of a topic that is not there on a page of Java.
"""

import argparse
import asyncio
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import PLAINTEXT, Security

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ANSWER_S = 5
"""The time limit of the first response; a listener that is no broker is given up after it."""
TIMEOUT_S = 10
"""The time limit of each later response."""
DEFAULT_PORT = 9092
INTERNAL = {"__consumer_offsets", "__transaction_state"}
SECURED = ("security.protocol", "sasl.", "ssl.")
PROBE_CONFIGS = {"retention.ms": "3600000"}


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a program, as its options name them."""

    reads: tuple[str, ...] = ()
    """Topics that must exist. A topic found by a pattern need not."""
    writes: tuple[str, ...] = ()
    """Topics that must exist, unless the cluster creates topics by itself."""
    pattern: str = ""
    """A regular expression that finds topics to be read, now or later."""
    made: tuple[str, ...] = ()
    """Topics that are created, with one partition, if they do not exist."""

    def __str__(self) -> str:
        """The topics that are read and written, in words."""
        ways = [("from", self.reads), ("to", self.writes)]
        return " ".join(f"{way} {', '.join(names)}" for way, names in ways if names)


def with_ports(servers: str) -> str:
    """HOST[:PORT],... with every port, as the `barnabas` command takes it, and Spark does not."""
    bare = (server if ":" in server.rpartition("]")[2] else f"{server}:{DEFAULT_PORT}" for server in named(servers))
    return ",".join(bare)


def named(text: str) -> tuple[str, ...]:
    """Topics that a comma-separated option names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def chosen(options: argparse.Namespace) -> tuple[str, ...]:
    """The topics that --topics names; none where --topics-pattern is to find them."""
    return () if options.topics_pattern else named(options.topics)


def what_is_missing(
    options: argparse.Namespace,
    topics: Topics,
    tell: Callable[[str], None] = lambda _: None,
    *,
    timeout_s: float = ANSWER_S,
) -> str | None:
    """Look at the cluster of `options`, and create what is to be made; returns in one line what is not there, or that
    there is no answer within `timeout_s`.

    A pattern that no topic matches is only reported: a matching topic may be created later, and is read then. With
    --once it is an error.
    """
    servers = options.bootstrap_servers
    problem = _nobody_listens(servers)
    if problem is not None:
        return problem
    security = getattr(options, "security", PLAINTEXT)
    if security != PLAINTEXT and (problem := _login_refusal(servers, security)) is not None:
        return problem
    if _is_secured(options.kafka) and not _is_secured(options.client):
        return None  # Spark is told how to get in, and we are not
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:  # below spark-submit it may not be there
        return None
    admin = AdminClient({"log_level": 2, **dict(options.client), "bootstrap.servers": servers})
    try:
        there = admin.list_topics(timeout=timeout_s).topics
        missing = [name for name in topics.reads if name not in there]
        absent = [name for name in topics.writes if name not in there]
        if absent and not _are_created_by_themselves(admin):
            missing += absent
        if missing:
            return _to_be_created(options, missing)
        if nothing := _nothing_matches(options, topics.pattern, there, tell):
            return nothing
        _create(admin, [name for name in topics.made if name not in there])
    except KafkaException as refusal:
        return f"{servers} does not respond as a Kafka cluster does: {refusal.args[0].str()}."
    return None


def _to_be_created(options: argparse.Namespace, missing: Sequence[str]) -> str:
    servers = options.bootstrap_servers
    is_or_are = "topic" if len(missing) == 1 else "topics"
    command = f"barnabas topics create {' '.join(missing)} --bootstrap-server {servers}"
    if config := getattr(options, "command_config", None):
        command += f" --command-config {config}"
    return f"{servers} has no {is_or_are} {', '.join(missing)}. To create what is missing: {command}"


def _nothing_matches(
    options: argparse.Namespace, pattern: str, there: Iterable[str], tell: Callable[[str], None]
) -> str | None:
    """Report that no topic's name has a match of the pattern, as Spark searches: the line with --once, else None."""
    try:
        if not pattern or any(re.search(pattern, name) for name in there if name not in INTERNAL):
            return None
    except re.error:
        return None  # it may be one of Java's: Spark finds out
    line = f"{options.bootstrap_servers} has no topic that matches --topics-pattern {pattern}"
    if options.once:
        return f"{line}: there is nothing to process."
    tell(f"{line}: waiting for one.")
    return None


def _nobody_listens(servers: str) -> str | None:
    """None if somebody takes connections at one of the addresses."""
    problems = []
    for server in named(servers):
        host, separator, port = server.rpartition(":")
        if not separator or not port.isdecimal():
            return f"--bootstrap-servers: {server!r} is not HOST[:PORT]."
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        except (OSError, OverflowError) as problem:
            problems.append(f"{server} ({getattr(problem, 'strerror', None) or problem})")
        else:
            return None
    return f"No broker listens on {', '.join(problems)}. `barnabas serve` starts one on 127.0.0.1:9092."


def _login_refusal(bootstrap_servers: str, security: Security) -> str | None:
    """Why a cluster does not accept this login, or this TLS, in one line; None if it does."""
    from barnabas.broker.client.client import KafkaClient

    async def log_in() -> None:
        async with KafkaClient(bootstrap_servers, client_id="barnabas-spark", security=security):
            pass

    try:
        asyncio.run(log_in())
    except ClientError as error:
        return " ".join(str(error).split())
    return None


def _is_secured(settings: Sequence[tuple[str, str]]) -> bool:
    return any(key.startswith(SECURED) for key, _ in settings)


def _create(admin: "AdminClient", names: Sequence[str]) -> None:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    if names:
        topics = [NewTopic(name, num_partitions=1, config=PROBE_CONFIGS) for name in names]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)


def _are_created_by_themselves(admin: "AdminClient") -> bool:
    """The value of auto.create.topics.enable at a broker; true for a user who may not see it."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    broker = next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    [described] = admin.describe_configs([resource]).values()
    try:
        return bool(described.result(TIMEOUT_S)["auto.create.topics.enable"].value == "true")
    except KafkaException as refused:
        if refused.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return True
        raise
