"""`barnabas acls`: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import compress
from typing import Annotated, Any, Final

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    AsJson,
    BootstrapServers,
    Outcome,
    counted,
    print_json,
    print_table,
    report,
    say,
    with_client,
)
from barnabas.broker.client.acls import Acl, AclFilter, create_acls, delete_acls, list_acls, operation_name
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.security.acls.bindings import ANY, WILDCARD, WILDCARD_PRINCIPAL, PatternType, PermissionType
from barnabas.broker.security.operations import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType

app = Application(help="Permissions: which users may do what with which topics and groups.")

PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE),
}
"""The operations that producers and consumers need (AclCommand of Kafka)."""

OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
    Operation.ALL,
)
"""The operations of the flags, in their order."""

User = Annotated[
    list[str] | None,
    typer.Option("--user", metavar="NAME", help="The user, or a principal such as User:CN=app; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class Whom:
    """The options that name principals."""

    user: User = None
    everybody: Annotated[bool, typer.Option("--everybody", help="All users (User:*).")] = False

    def principals(self) -> list[str]:
        """The principals: a name is that of a user, unless it has a type of its own."""
        return [*principals(self.user), *([WILDCARD_PRINCIPAL] if self.everybody else [])]


def principals(users: Sequence[str] | None) -> list[str]:
    """The principals of users."""
    return [user if user.startswith("User:") else f"User:{user}" for user in users or ()]


@dataclass(frozen=True, slots=True)
class What:
    """The flags of operations, in the order of `OPERATIONS`."""

    read: Annotated[bool, typer.Option("--read", help="Read records, join a group, commit offsets.")] = False
    write: Annotated[bool, typer.Option("--write", help="Write records.")] = False
    create: Annotated[bool, typer.Option("--create", help="Create topics.")] = False
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics, records or groups.")] = False
    alter: Annotated[
        bool, typer.Option("--alter", help="Add partitions; of the cluster: ACLs, users, reassignments.")
    ] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show it; other operations include that.")] = False
    cluster_action: Annotated[
        bool, typer.Option("--cluster-action", help="Send requests that brokers send each other.")
    ] = False
    describe_configs: Annotated[bool, typer.Option("--describe-configs", help="Show configs.")] = False
    alter_configs: Annotated[bool, typer.Option("--alter-configs", help="Change configs.")] = False
    idempotent_write: Annotated[bool, typer.Option("--idempotent-write", help="Write idempotently, to any topic.")] = (
        False
    )
    everything: Annotated[bool, typer.Option("--all", help="All operations.")] = False

    def operations(self) -> list[Operation]:
        """The operations whose flags are set."""
        return list(compress(OPERATIONS, astuple(self)))


@dataclass(frozen=True, slots=True)
class Which:
    """The options that name resources."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", autocompletion=completion.topics, help="A topic; * for all."),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", autocompletion=completion.groups, help="A consumer group; * for all."),
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", metavar="NAME", help="A transactional id; * for all."),
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster itself.")] = False

    def resources(self) -> list[tuple[ResourceType, str]]:
        """The resources."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topic or ()),
            *((ResourceType.GROUP, name) for name in self.group or ()),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_id or ()),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
        ]


@dataclass(frozen=True, slots=True)
class How:
    """The options of a rule about principals and resources."""

    prefix: Annotated[
        bool, typer.Option("--prefix", help="The names are prefixes: --topic orders fits orders-eu, too.")
    ] = False
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Only of clients with this IP address.")
    ] = None
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it, whatever else allows it.")] = False

    @property
    def permission(self) -> PermissionType:
        return PermissionType.DENY if self.deny else PermissionType.ALLOW

    def pattern(self, resource_type: ResourceType, name: str) -> PatternType:
        """The pattern type of a resource."""
        is_prefix = self.prefix and resource_type is not ResourceType.CLUSTER and name != WILDCARD
        return PatternType.PREFIXED if is_prefix else PatternType.LITERAL


Producer = Annotated[bool, typer.Option("--producer", help="Write, describe and create: what a producer needs.")]
Consumer = Annotated[bool, typer.Option("--consumer", help="Read and describe: what a consumer needs.")]


def planned(
    named: Sequence[tuple[ResourceType, str]], wanted: Sequence[int], *, producer: bool, consumer: bool
) -> list[tuple[int, ResourceType, str]]:
    """Each operation with its resource; an operation applies to the named resources that have it.

    Raises: typer.BadParameter if an operation applies to none, or a resource has none of them.
    """
    found: dict[tuple[int, ResourceType, str], None] = {}
    for resource_type, name in named:
        fitting = [code for code in wanted if code == Operation.ALL or code in SUPPORTED_OPERATIONS[resource_type]]
        for role, is_wanted in ((PRODUCER, producer), (CONSUMER, consumer)):
            if is_wanted:
                fitting += role.get(resource_type, ())
        if not fitting:
            text = ", ".join(_option(code) for code in (Operation.ALL, *SUPPORTED_OPERATIONS[resource_type]))
            raise typer.BadParameter(f"none of the operations is one of a {_words(resource_type)}: it has {text}")
        found |= {(code, resource_type, name): None for code in fitting}
    used = {code for code, *_ in found}
    for code in wanted:
        if code not in used:
            raise typer.BadParameter(f"{_option(code)} is no operation of what is named")
    return list(found)


def _option(code: int) -> str:
    return f"--{operation_name(code).lower().replace('_', '-')}"


def _words(resource_type: ResourceType) -> str:
    return resource_type.name.lower().replace("_", " ")


@app.command("add")
def add(
    whom: Whom,
    what: What,
    *,
    producer: Producer = False,
    consumer: Consumer = False,
    which: Which,
    how: How,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Allow users to do something, or forbid it.

    Each named operation applies to the named topics, groups, transactional ids and the cluster that have it. A user may
    do what some rule allows and none forbids; super users may do everything. --as logs in; --user is whom it is about.

    [bold]Examples[/bold]

      barnabas acls add --user alice --read --topic orders --prefix
      barnabas acls add --user loader --consumer --topic flights --group loader
      barnabas acls add --user feeder --producer --topic flights --transactional-id feeder --prefix
      barnabas acls add --everybody --describe --topic '*'
      barnabas acls add --user mallory --deny --all --topic flights --host 10.0.0.7
    """
    who, wanted, named = whom.principals(), what.operations(), which.resources()
    if not who:
        raise typer.BadParameter("who? Give --user or --everybody")
    if not named:
        raise typer.BadParameter("with what? Give --topic, --group, --transactional-id or --cluster")
    if not (wanted or producer or consumer):
        raise typer.BadParameter("what? Give --read, --write, --producer, --consumer or another operation")
    acls = [
        Acl(principal, how.permission, code, kind, name, how.pattern(kind, name), how.host or WILDCARD)
        for principal in who
        for code, kind, name in planned(named, wanted, producer=producer, consumer=consumer)
    ]
    problems = with_client(bootstrap_servers, lambda client: create_acls(client, acls))
    report(
        [
            Outcome(acl.as_document(), f"{sentence(acl)}: {problem}" if problem else sentence(acl), bool(problem))
            for acl, problem in zip(acls, problems, strict=True)
        ],
        as_json,
    )


def sentence(acl: Acl) -> str:
    """A rule in words."""
    who = "everybody" if acl.principal == WILDCARD_PRINCIPAL else acl.principal.removeprefix("User:")
    where = f"{_words(acl.resource_type)} {acl.name}{'...' if acl.pattern == PatternType.PREFIXED else ''}"
    if acl.resource_type is ResourceType.CLUSTER:
        where = "the cluster"
    elif acl.name == WILDCARD and acl.pattern == PatternType.LITERAL:
        where = f"any {_words(acl.resource_type)}"
    may = "may not" if acl.permission is PermissionType.DENY else "may"
    place = "" if acl.host == "*" else f" from {acl.host}"
    return f"{who} {may} {operation_name(acl.operation)} {where}{place}"


@app.command("list")
def list_rules(
    *,
    user: User = None,
    which: Which,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the permissions of users, or all that matter for a topic or group: those of prefixes and *, too.

    [bold]Examples[/bold]

      barnabas acls list
      barnabas acls list --user alice
      barnabas acls list --topic orders-eu --json | jq -r '.[].principal'
    """
    whose: list[str | None] = [*principals(user)]
    named: list[tuple[int, str | None]] = [*which.resources()]
    filters = [
        AclFilter(
            principal=principal,
            resource_type=resource_type,
            name=name,
            pattern=ANY if name is None else PatternType.MATCH,
        )
        for principal in whose or [None]
        for resource_type, name in named or [(ANY, None)]
    ]

    async def work(client: KafkaClient) -> list[Acl]:
        return sorted({acl for each in filters for acl in await list_acls(client, each)})

    found = with_client(bootstrap_servers, work)
    if as_json:
        print_json([acl.as_document() for acl in found])
        return
    print_table(
        ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"),
        [
            (row["principal"], row["permission"], row["operation"], row["resource_type"], row["resource_name"],
             row["pattern_type"], row["host"])
            for row in (acl.as_document() for acl in found)
        ],
    )  # fmt: skip


@app.command("remove")
def remove(
    whom: Whom,
    what: What,
    which: Which,
    how: How,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Remove rules that have all of what is named: those of a user, of a topic, for an operation.

    --all is the rule for all operations; without an operation, rules of each are removed. --deny takes rules that
    forbid, without it those that allow are meant.

    [bold]Examples[/bold]

      barnabas acls remove --user alice --read --topic orders --prefix
      barnabas acls remove --user loader
      barnabas acls remove --user mallory --deny
    """
    who: list[str | None] = [*whom.principals()]
    named: list[tuple[Any, str | None]] = [*which.resources()]
    wanted: list[int] = [*what.operations()] or [ANY]
    if not who and not named:
        raise typer.BadParameter("which? Give --user, --everybody, --topic, --group, --transactional-id or --cluster")
    filters = [
        AclFilter(
            principal,
            how.permission,
            code,
            resource_type,
            name,
            ANY if name is None else how.pattern(resource_type, name),
            how.host,
        )
        for principal in who or [None]
        for code in wanted
        for resource_type, name in named or [(ANY, None)]
    ]
    removed = with_client(bootstrap_servers, lambda client: delete_acls(client, filters))
    if as_json:
        print_json([acl.as_document() for acl in removed])
        return
    for acl in removed:
        say(f"removed: {sentence(acl)}")
    say(f"{counted(len(removed), 'rule')} removed")
