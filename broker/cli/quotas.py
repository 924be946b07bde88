"""`barnabas quotas`: how much users, client ids and addresses may use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    Outcome,
    print_json,
    print_table,
    report,
    with_client,
)
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.quotas import CLIENT_ID, IP, USER, Entity, alter_quotas, describe_quotas, entity_text

app = Application(help="Limits: how much users, clients and addresses may use.")

PRODUCE: Final = "producer_byte_rate"
CONSUME: Final = "consumer_byte_rate"
REQUESTS: Final = "request_percentage"
CHANGES: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"
"""The keys of quotas in Kafka."""

_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def byte_rate(text: str) -> float:
    """Bytes per second: 500000, 500k, 10MB, 1.5MiB."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no number of bytes per second: expected 500000, 500k, 10MB or 1.5MiB")
    return float(match[1]) * {**_UNITS, **_BINARY_UNITS}[(match[2] or "").lower()]


@dataclass(frozen=True, slots=True)
class Whose:
    """The options that name an entity."""

    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user.")] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="Each user without a quota of its own.")] = (
        False
    )
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="The client id.")] = None
    client_defaults: Annotated[
        bool, typer.Option("--client-defaults", help="Each client id without a quota of its own.")
    ] = False
    ip: Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The clients' address.")] = None
    ip_defaults: Annotated[bool, typer.Option("--ip-defaults", help="Each address without a quota of its own.")] = False

    def entity(self) -> Entity:
        """The entity, empty if none is named. Raises: typer.BadParameter for options that exclude each other."""
        entity: Entity = {}
        for kind, name, is_default, option in (
            (USER, self.user, self.user_defaults, "--user"),
            (CLIENT_ID, self.client, self.client_defaults, "--client"),
            (IP, self.ip, self.ip_defaults, "--ip"),
        ):
            if name is not None and is_default:
                raise typer.BadParameter(f"{option} names one, {option}-defaults means the others: give one of them")
            if name is not None or is_default:
                entity[kind] = name
        if IP in entity and len(entity) > 1:
            raise typer.BadParameter("addresses have quotas of their own: give --ip alone")
        return entity


def _named(entity: Entity) -> Entity:
    if not entity:
        raise typer.BadParameter("whose? Give --user, --client, --ip, or the -defaults of one of them")
    return entity


@app.command("set")
def set_quotas(
    whose: Whose,
    produce: Annotated[
        float | None,
        typer.Option("--produce", metavar="BYTES", parser=byte_rate, help="Bytes written per second and broker: 10MB."),
    ] = None,
    consume: Annotated[
        float | None,
        typer.Option("--consume", metavar="BYTES", parser=byte_rate, help="Bytes read per second and broker."),
    ] = None,
    requests: Annotated[
        float | None,
        typer.Option("--requests", metavar="PERCENT", min=0, help="Percentage of a broker's time for requests."),
    ] = None,
    changes: Annotated[
        float | None,
        typer.Option("--changes", metavar="RATE", min=0, help="Partitions created or deleted per second."),
    ] = None,
    connections: Annotated[
        int | None, typer.Option("--connections", metavar="RATE", min=0, help="New connections per second, of --ip.")
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Limit a user, a client id, a client id of a user, or an address. Clients that exceed a limit are slowed down.

    The most specific quota counts: of user and client id, of the user, of the client id, then the defaults.

    [bold]Examples[/bold]

      barnabas quotas set --user alice --produce 10MB --consume 20MB
      barnabas quotas set --user alice --client loader --produce 1MB
      barnabas quotas set --user-defaults --requests 25 --changes 10
      barnabas quotas set --ip 10.0.0.7 --connections 5
    """
    entity = _named(whose.entity())
    values = {
        key: float(value)
        for key, value in (
            (PRODUCE, produce),
            (CONSUME, consume),
            (REQUESTS, requests),
            (CHANGES, changes),
            (CONNECTIONS, connections),
        )
        if value is not None
    }
    if not values:
        raise typer.BadParameter("which limit? Give --produce, --consume, --requests, --changes or --connections")
    if (CONNECTIONS in values) != (IP in entity) or (IP in entity and len(values) > 1):
        raise typer.BadParameter("--connections is the limit of addresses, and their only one: give it with --ip")
    with_client(bootstrap_servers, lambda connected: alter_quotas(connected, entity, values))
    told = ", ".join(f"{key}={value:.15g}" for key, value in values.items())
    report([Outcome({"entity": entity, "quotas": values}, f"{entity_text(entity)}: {told}")], as_json)


@app.command("list")
def list_quotas(
    whose: Whose,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List quotas: all, or those in which a user, a client id or an address occurs.

    [bold]Examples[/bold]

      barnabas quotas list
      barnabas quotas list --user alice --json | jq '.[0].quotas.producer_byte_rate'
    """
    wanted = whose.entity()
    found = with_client(bootstrap_servers, lambda connected: describe_quotas(connected, wanted))
    if as_json:
        print_json([{"entity": entity, "quotas": quotas} for entity, quotas in found])
        return
    print_table(
        ("WHOSE", "QUOTA", "VALUE"),
        [
            (entity_text(entity), key, f"{value:.15g}")
            for entity, quotas in found
            for key, value in sorted(quotas.items())
        ],
    )


@app.command("remove")
def remove(
    whose: Whose,
    produce: Annotated[bool, typer.Option("--produce", help="The limit of bytes written.")] = False,
    consume: Annotated[bool, typer.Option("--consume", help="The limit of bytes read.")] = False,
    requests: Annotated[bool, typer.Option("--requests", help="The limit of a broker's time.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="The limit of partitions created or deleted.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Remove some limits, or all, of exactly the named user, client id, client id of a user, or address.

    [bold]Examples[/bold]

      barnabas quotas remove --user alice --produce
      barnabas quotas remove --user alice --client loader
    """
    entity = _named(whose.entity())
    chosen = [
        key
        for key, is_set in ((PRODUCE, produce), (CONSUME, consume), (REQUESTS, requests), (CHANGES, changes))
        if is_set
    ]

    async def work(connected: KafkaClient) -> list[str]:
        there = {key for _, quotas in await describe_quotas(connected, entity, is_exact=True) for key in quotas}
        keys = [key for key in chosen or sorted(there) if key in there]
        if not keys:
            raise ClientError(f"{entity_text(entity)} has no such quota: `barnabas quotas list` shows all")
        await alter_quotas(connected, entity, dict.fromkeys(keys))
        return keys

    removed = with_client(bootstrap_servers, work)
    report(
        [Outcome({"entity": entity, "removed": removed}, f"{entity_text(entity)}: {', '.join(removed)} removed")],
        as_json,
    )
