"""`barnabas configs`: the configs of topics, brokers and loggers, and the check of a file."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    EXIT_USAGE,
    AsJson,
    BootstrapServers,
    Outcome,
    complain,
    note,
    print_json,
    print_table,
    report,
    say,
    with_client,
)
from barnabas.broker.cli.values import key_values
from barnabas.broker.client.configs import (
    BROKER,
    BROKER_LOGGER,
    TOPIC,
    ConfigResource,
    alter_configs,
    describe_configs,
    resource_text,
    stored_in_vain,
    unknown_keys,
)
from barnabas.broker.configuration.config import BrokerConfig, ConfigError, resolve
from barnabas.broker.configuration.listeners import PLAINTEXT, SASL_PLAINTEXT, Listener

app = Application(help="Show and change configs of topics, brokers and loggers; check files.")

_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "all brokers, at run time",
    4: "broker, at start",
    5: "default",
    6: "logger",
}
_DEFAULT_CONFIG = 5


class ResourceKind(StrEnum):
    """A kind of resource with configs; `brokers` means all of them."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKERS = "brokers"
    LOGGER = "logger"


_KINDS = {ResourceKind.TOPIC: TOPIC, ResourceKind.BROKER: BROKER, ResourceKind.LOGGER: BROKER_LOGGER}

Kind = Annotated[ResourceKind, typer.Argument(metavar="KIND", help="topic, broker, brokers (all of them) or logger.")]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        autocompletion=completion.resources,
        help="Name of the topic, or id of the broker; none for brokers.",
    ),
]


def _resource(kind: ResourceKind, name: str | None) -> ConfigResource:
    if kind is ResourceKind.BROKERS:
        if name:
            raise typer.BadParameter("`brokers` means all of them: it takes no name", param_hint="NAME")
        return BROKER, ""
    if not name:
        raise typer.BadParameter(f"which {kind}?", param_hint="NAME")
    return _KINDS[kind], name


@app.command("describe")
def describe(
    kind: Kind,
    name: Name = None,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Show defaults, too.")] = False,
    documentation: Annotated[bool, typer.Option("--documentation", help="Explain each config.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show configs and where their values come from.

    [bold]Examples[/bold]

      barnabas configs describe topic flights --all
      barnabas configs describe broker 1 --all --documentation
      barnabas configs describe brokers
      barnabas configs describe logger 1
    """
    resource = _resource(kind, name)
    configs = with_client(
        bootstrap_servers,
        lambda client: describe_configs(client, [resource], include_documentation=documentation),
    )[resource]
    shown = [config for config in configs if show_all or as_json or config.config_source != _DEFAULT_CONFIG]
    if as_json:
        print_json(
            [
                {
                    "name": config.name,
                    "value": config.value,
                    "source": _SOURCES.get(config.config_source, str(config.config_source)),
                    "is_default": config.config_source == _DEFAULT_CONFIG,
                    "is_sensitive": config.is_sensitive,
                    "read_only": config.read_only,
                    **({"documentation": config.documentation} if documentation else {}),
                }
                for config in shown
            ]
        )
        return
    columns = ("CONFIG", "VALUE", "SOURCE", *(("MEANING",) if documentation else ()))
    print_table(
        columns,
        [
            (
                config.name,
                "(hidden)" if config.is_sensitive else config.value,
                _SOURCES.get(config.config_source, config.config_source),
                *((config.documentation or "",) if documentation else ()),
            )
            for config in shown
        ],
    )
    if not show_all and len(shown) < len(configs):
        note(f"{len(configs) - len(shown)} configs have their defaults: --all shows them")


@app.command("alter")
def alter(
    kind: Kind,
    name: Name = None,
    set_to: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", autocompletion=completion.keys, help="Set a config."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete", "-d", metavar="KEY", autocompletion=completion.deleted_keys, help="Go back to the default."
        ),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="KEY=VALUE", autocompletion=completion.keys, help="Add to a list."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="KEY=VALUE", autocompletion=completion.keys, help="Remove from a list."),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Change configs: all that are named, or none of them.

    A broker stores keys that it does not know, too, as Kafka's does for plugins: the command warns of them.

    [bold]Examples[/bold]

      barnabas configs alter topic flights --set retention.ms=3600000 --delete segment.bytes
      barnabas configs alter topic flights --append cleanup.policy=compact
      barnabas configs alter brokers --set log.retention.ms=86400000
      barnabas configs alter logger 1 --set barnabas.broker.api.dispatch=DEBUG
    """
    resource = _resource(kind, name)
    if not (set_to or delete or append or subtract):
        raise typer.BadParameter("nothing to change: give --set, --delete, --append or --subtract")
    setting, adding = key_values(set_to or [], "--set"), key_values(append or [], "--append")
    taking, deleting = key_values(subtract or [], "--subtract"), delete or []
    with_client(
        bootstrap_servers,
        lambda client: alter_configs(
            client, *resource, set_to=setting, delete=deleting, append=adding, subtract=taking
        ),
    )
    if resource[0] == BROKER:
        for key in unknown_keys(BROKER, setting):
            complain(stored_in_vain(key))
    changed = sorted({*setting, *adding, *taking, *deleting})
    sentence = f"{resource_text(resource)}: {', '.join(changed)} changed"
    report([Outcome({"kind": kind, "name": name, "changed": changed}, sentence)], as_json)


@app.command("check")
def check_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Kafka's server.properties.")],
    environment: Annotated[
        bool, typer.Option("--environment", "-e", help="Read KAFKA_... variables, too, as `serve` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file as `barnabas serve FILE` reads it, without starting a broker.

    It checks the configuration, not the machine: keys and values, and the keys, certificates and logins that they
    name, but no directories, host names, ports or other brokers. KAFKA_... variables, which `serve` reads, count only
    with --environment. The status is 2, as that of `serve`, if the configuration cannot be used.

    [bold]Examples[/bold]

      barnabas config check server.properties
      barnabas config check server.properties --json | jq .errors
    """
    from barnabas.broker.cli.one_broker import read_properties_file

    try:
        properties = read_properties_file(path)
    except ConfigError as error:
        complain("; ".join(error.problems))
        raise typer.Exit(EXIT_USAGE) from error
    directories = {name: os.environ[name] for name in ("HOME", "XDG_DATA_HOME") if name in os.environ}
    resolution = resolve(properties=properties, environ=os.environ if environment else directories)
    config, errors = resolution.config, resolution.errors
    if config is not None and (found := _problems_of_files(config)):
        config, errors = None, found
    if as_json:
        print_json(
            {
                "usable": config is not None,
                "errors": errors,
                "warnings": resolution.warnings,
                "notes": resolution.notes,
            }
        )
    else:
        for kind, lines in (("error", errors), ("warning", resolution.warnings), ("note", resolution.notes)):
            for line in lines:
                say(f"{kind}: {line}")
        if config is not None:
            say(f"node.id {config.node_id}, data in {', '.join(config.log_dirs)}")
            for listener in config.listeners:
                say(_listener_text(listener))
        say("the file cannot be used" if config is None else "the file can be used")
    if config is None:
        raise typer.Exit(EXIT_USAGE)


def _problems_of_files(config: BrokerConfig) -> tuple[str, ...]:
    """What keeps keys, certificates and logins, of listeners and for ZooKeeper, from being used."""
    return (*_problems_of_tls(config), *_problems_with_zookeeper(config))


def _problems_of_tls(config: BrokerConfig) -> tuple[str, ...]:
    if not config.has_http_tls and not any(listener.has_tls for listener in config.listeners):
        return ()
    from barnabas.broker.network.listener_tls import problems

    return tuple(problems(config, has_others=config.zookeeper_connect is not None))


def _problems_with_zookeeper(config: BrokerConfig) -> tuple[str, ...]:
    if not config.has_protected_zookeeper:
        return ()
    from barnabas.broker.cluster.zookeeper_security import problems

    return tuple(problems(config))


def _listener_text(listener: Listener) -> str:
    bound = f"{listener.host or '*'}:{listener.port or 'any free port'}"
    if not listener.advertised:
        return f"listener {listener.name} on {bound}, not advertised"
    port = listener.advertised_port or listener.port or "the port it gets"
    return (
        f"listener {listener.name} on {bound}, advertised as {listener.advertised_host or 'this host'}:{port}"
        f"{_open_to(listener)}"
    )


def _open_to(listener: Listener) -> str:
    """Whether others reach a listener, and what it lacks then."""
    if listener.is_loopback:
        return ""
    lacking = {
        PLAINTEXT: ", without encryption or authentication",
        SASL_PLAINTEXT: ", without encryption",
    }
    return f"; open to other machines{lacking.get(listener.security_protocol, '')}"
