"""`barnabas users`: users that log in by SCRAM."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

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
from barnabas.broker.client.users import describe_users, new_password, remove_password, set_password

app = Application(help="Users that log in with a password, by SCRAM.")


class Mechanism(StrEnum):
    """A mechanism of SCRAM."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option(
        "--mechanism", metavar="MECHANISM", help=f"{' or '.join(Mechanism)}; may be repeated; by default both."
    ),
]
NewPassword = Annotated[
    str | None,
    typer.Option(
        "--new-password", metavar="TEXT", help="The password; - reads it from standard input; else one is made."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@app.command("add")
def add(
    name: Name,
    mechanism: Mechanisms = None,
    password: NewPassword = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Add a user. Without --new-password, a password is made and printed, this once.

    A user may do nothing yet where the cluster has an authorizer: `barnabas acls add` gives permissions.

    [bold]Examples[/bold]

      barnabas users add alice
      echo secret-of-bob | barnabas users add bob --new-password -
      barnabas users add carol --mechanism SCRAM-SHA-512 --json
    """
    _set(name, mechanism, password, bootstrap_servers, as_json, is_new=True)


@app.command("password")
def password(
    name: Name,
    mechanism: Mechanisms = None,
    password: NewPassword = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Give a user another password. Connections that are open stay open.

    [bold]Examples[/bold]

      barnabas users password alice
      echo other-secret | barnabas users password alice --new-password -
    """
    _set(name, mechanism, password, bootstrap_servers, as_json, is_new=False)


def _set(
    name: str,
    mechanisms: list[Mechanism] | None,
    given: str | None,
    bootstrap_servers: str,
    as_json: bool,
    *,
    is_new: bool,
) -> None:
    password = new_password() if given is None else _read_password() if given == "-" else given

    async def work(client: KafkaClient) -> Outcome:
        is_known = name in await describe_users(client, [name])
        if is_new and is_known:
            raise ClientError(f"user {name} exists: `barnabas users password {name}` gives another password")
        if not is_new and not is_known:
            raise ClientError(f"user {name} has no password for SCRAM: `barnabas users add {name}` adds the user")
        chosen = list(mechanisms or Mechanism)
        await set_password(client, name, password, chosen)
        item = {"user": name, "mechanisms": chosen} | ({"password": password} if given is None else {})
        sentence = f"user {name} is added" if is_new else f"user {name} has another password"
        sentence += f", for {' and '.join(chosen)}"
        if given is None:
            sentence += f"; the password, which is not shown again: {password}"
        return Outcome(item, sentence)

    report([with_client(bootstrap_servers, work)], as_json)


def _read_password() -> str:
    """The first line of standard input. Errors: ClientError."""
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ClientError("standard input has no password")
    return password


@app.command("list")
def list_users(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Names of users.")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the users that have a password for SCRAM.

    Users of PLAIN are in the brokers' configuration, those of certificates and tokens are known by these.

    [bold]Examples[/bold]

      barnabas users list
      barnabas users list --json | jq -r '.[].user'
    """
    users = with_client(bootstrap_servers, lambda client: describe_users(client, names or None))
    if as_json:
        print_json(
            [
                {
                    "user": name,
                    "mechanisms": [
                        {"mechanism": mechanism, "iterations": iterations}
                        for mechanism, iterations in sorted(users[name].items())
                    ],
                }
                for name in sorted(users)
            ]
        )
    else:
        print_table(("USER", "MECHANISMS"), [(name, ", ".join(sorted(users[name]))) for name in sorted(users)])
    missing = [name for name in names or () if name not in users]
    if missing:
        raise ClientError(f"no password for SCRAM: {', '.join(missing)}")


@app.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of users.")],
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Remove users, so that they can no longer log in. Open connections stay open, and so do ACLs and quotas.

    [bold]Example[/bold]

      barnabas users remove bob carol
    """

    async def work(client: KafkaClient) -> list[Outcome]:
        known = await describe_users(client, names)
        outcomes = []
        for name in names:
            if name not in known:
                outcomes.append(
                    Outcome({"user": name, "removed": False}, f"user {name} has no password for SCRAM", is_failure=True)
                )
                continue
            await remove_password(client, name, sorted(known[name]))
            outcomes.append(Outcome({"user": name, "removed": True}, f"user {name} is removed"))
        return outcomes

    report(with_client(bootstrap_servers, work), as_json)
