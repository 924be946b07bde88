"""What shells propose for an argument: topics, groups, ids and keys, asked of the broker that the line so far names.

Typer prints these for bash, zsh and fish (`barnabas --install-completion`); choices and commands it knows by itself.
Whatever goes wrong, nothing is proposed: a line that is being typed is no place for errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from typing import Any

import typer

from barnabas.broker.cli.command import Command
from barnabas.broker.cli.output import DEFAULT_BOOTSTRAP_SERVERS, counted
from barnabas.broker.client.client import ClientError, KafkaClient

ANSWER_TIMEOUT_S = 1.0

Proposals = list[tuple[str, str]]
"""Words and what they mean."""


class KeepsArguments(Command):
    """A command whose arguments are known while the value of an option is being typed: click forgets them."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """The arguments that are left, parsed without an option at the end that lacks its value."""
        is_dangling = context.resilient_parsing and args and args[-1].startswith("-")
        return super().parse_args(context, args[:-1] if is_dangling else args)


def repair_bash_words(environ: MutableMapping[str, str]) -> None:
    """Put together what bash has taken apart at `:` and `=`, so that HOST:PORT is one word again, as typer expects."""
    words, current = environ.get("COMP_WORDS", "").split("\n"), environ.get("COMP_CWORD", "")
    if not current.isdecimal():
        return
    joined: list[str] = []
    cursor = int(current)
    for number, word in enumerate(words):
        is_part = word in (":", "=") or (number > 0 and words[number - 1] in (":", "="))
        if is_part and len(joined) > 1:
            joined[-1] += word
            cursor -= number <= int(current)
        else:
            joined.append(word)
    environ["COMP_WORDS"], environ["COMP_CWORD"] = "\n".join(joined), str(cursor)


def topics(context: typer.Context, incomplete: str) -> Proposals:
    """Names of topics, the broker's own ones only where their underscores are typed."""

    async def work(client: KafkaClient) -> Proposals:
        return [
            (topic.name or "", counted(len(topic.partitions), "partition"))
            for topic in (await client.metadata(None)).topics
            if not topic.is_internal or incomplete.startswith("__")
        ]

    return _asked(context, work)


def groups(context: typer.Context) -> Proposals:
    """Ids of groups."""
    from barnabas.wire.messages.list_groups import ListGroupsRequest

    async def work(client: KafkaClient) -> Proposals:
        answers = [await client.send(ListGroupsRequest(), node_id) for node_id in client.node_ids()]
        return [(group.group_id, group.group_state) for answer in answers for group in answer.groups]

    return _asked(context, work)


def transactional_ids(context: typer.Context) -> Proposals:
    """Transactional ids."""
    from barnabas.wire.messages.list_transactions import ListTransactionsRequest

    async def work(client: KafkaClient) -> Proposals:
        answers = [await client.send(ListTransactionsRequest(), node_id) for node_id in client.node_ids()]
        return [
            (each.transactional_id, each.transaction_state) for answer in answers for each in answer.transaction_states
        ]

    return _asked(context, work)


def resources(context: typer.Context, incomplete: str) -> Proposals:
    """What `configs` may be told the name of: topics or ids of brokers, by the KIND before it."""
    kind = str(context.params.get("kind") or "")
    if kind == "topic":
        return topics(context, incomplete)
    if kind not in ("broker", "logger"):
        return []

    async def work(client: KafkaClient) -> Proposals:
        return [(str(node_id), "broker") for node_id in client.node_ids()]

    return _asked(context, work)


def broker_ids(context: typer.Context, incomplete: str) -> Proposals:
    """Ids of brokers; behind a comma, further ones."""
    typed = incomplete.rpartition(",")[0].split(",") if "," in incomplete else []

    async def work(client: KafkaClient) -> Proposals:
        return [
            (",".join([*typed, str(node_id)]), "broker") for node_id in client.node_ids() if str(node_id) not in typed
        ]

    return [each for each in _asked(context, work) if each[0].startswith(incomplete)]


def topic_keys(incomplete: str) -> Proposals:
    """Keys of topics as `KEY=`."""
    return _with_values(_topic_keys(), incomplete)


def deleted_topic_keys() -> Proposals:
    """Keys of topics."""
    return _topic_keys()


def keys(context: typer.Context, incomplete: str) -> Proposals:
    """Keys of the resource that the line names, as `KEY=`."""
    return _with_values(_keys(context), incomplete)


def deleted_keys(context: typer.Context) -> Proposals:
    """Keys of the resource that the line names."""
    return _keys(context)


def broker_keys(incomplete: str) -> Proposals:
    """Keys of brokers as `KEY=`."""
    from barnabas.broker.configuration.definitions import to_text
    from barnabas.broker.configuration.keys import BROKER_KEYS

    return _with_values([(name, to_text(key.default) or "") for name, key in BROKER_KEYS.items()], incomplete)


def _topic_keys() -> Proposals:
    from barnabas.broker.configuration.definitions import to_text
    from barnabas.broker.configuration.topics import TOPIC_KEYS

    return [(name, to_text(key.default) or "") for name, key in TOPIC_KEYS.items()]


def _keys(context: typer.Context) -> Proposals:
    from barnabas.broker.client.configs import BROKER, BROKER_LOGGER, TOPIC, describe_configs

    kind, name = str(context.params.get("kind") or ""), str(context.params.get("name") or "")
    kinds = {"topic": TOPIC, "broker": BROKER, "brokers": BROKER, "logger": BROKER_LOGGER}
    if kind not in kinds:
        return []

    async def work(client: KafkaClient) -> Proposals:
        # All brokers have no keys of their own before some are set: one of them has them all.
        resource = (kinds[kind], str(client.node_ids()[0]) if kind == "brokers" else name)
        found = await describe_configs(client, [resource])
        return [(config.name, config.value or "") for config in found[resource] if not config.read_only]

    return _asked(context, work)


def _with_values(proposals: Iterable[tuple[str, str]], incomplete: str) -> Proposals:
    """`KEY=` for keys; the only one left with its value, too, or the shell would go on with a space behind the `=`."""
    if "=" in incomplete:
        return []
    left = [(key, value) for key, value in proposals if key.startswith(incomplete)]
    words = [(f"{key}=", value) for key, value in left]
    return [*words, *((f"{key}={value}", "as it is") for key, value in left if len(left) == 1 and value)]


def _asked(context: typer.Context, work: Callable[[KafkaClient], Coroutine[Any, Any, Proposals]]) -> Proposals:
    servers = context.params.get("bootstrap_servers") or DEFAULT_BOOTSTRAP_SERVERS

    async def connected() -> Proposals:
        async with asyncio.timeout(ANSWER_TIMEOUT_S), KafkaClient(servers) as client:
            return sorted(await work(client))

    with contextlib.suppress(ClientError, TimeoutError):
        return asyncio.run(connected())
    return []
