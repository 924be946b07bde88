"""The shells' completions of an argument: topics, groups, ids and keys, requested from the broker in the line so far.

Typer prints these for bash, zsh and fish (`barnabas --install-completion`); it completes choices and commands itself.
In case of any error nothing is proposed: a line that is being typed must not be disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from typing import Any

import typer

from barnabas.broker.cli import connection_options
from barnabas.broker.cli.output import DEFAULT_BOOTSTRAP_SERVERS, counted
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.security_options import ask_nobody

ANSWER_TIMEOUT_S = 1.0

Proposals = list[tuple[str, str]]
"""Words and their descriptions."""


@contextlib.contextmanager
def bash_words(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Repair the words that bash splits for typer, and print completions for the part that bash completes."""
    begun = repair_bash_words(environ)
    if not begun:
        yield
        return
    proposed = io.StringIO()
    try:
        with contextlib.redirect_stdout(proposed):
            yield
    finally:
        sys.stdout.write("".join(line.removeprefix(begun) for line in proposed.getvalue().splitlines(keepends=True)))


def repair_bash_words(environ: MutableMapping[str, str]) -> str:
    """Join words that bash has split at `:` and `=`, so that HOST:PORT is one word again, as typer expects. Returns the
    prefix of the word at the cursor that bash takes for separate words.
    """
    words, current = environ.get("COMP_WORDS", "").split("\n"), environ.get("COMP_CWORD", "")
    if not current.isdecimal():
        return ""
    joined: list[str] = []
    cursor = int(current)
    begun = ""
    for number, word in enumerate(words):
        is_break = word in (":", "=")
        is_part = is_break or (number > 0 and words[number - 1] in (":", "="))
        if is_part and len(joined) > 1:
            if number == int(current):
                begun = joined[-1] + (word if is_break else "")
            joined[-1] += word
            cursor -= number <= int(current)
        else:
            joined.append(word)
    environ["COMP_WORDS"], environ["COMP_CWORD"] = "\n".join(joined), str(cursor)
    return begun


def topics(context: typer.Context, incomplete: str) -> Proposals:
    """Names of topics, internal ones only after their underscores are typed."""

    async def work(client: KafkaClient) -> Proposals:
        return [
            (topic.name or "", counted(len(topic.partitions), "partition"))
            for topic in (await client.metadata(None)).topics
            if not topic.is_internal or incomplete.startswith("__")
        ]

    return _asked(context, work)


def topic_partitions(context: typer.Context, incomplete: str) -> Proposals:
    """Names of topics; after a colon, and commas, numbers of partitions."""
    topic, colon, numbers = incomplete.partition(":")
    if not colon:
        return topics(context, incomplete)
    typed = numbers.split(",")[:-1]
    begun = f"{topic}:{''.join(f'{number},' for number in typed)}"
    return [(f"{begun}{number}", told) for number, told in _partitions(context, [topic]) if number not in typed]


def partitions(context: typer.Context) -> Proposals:
    """Numbers of the partitions of the topics in the line."""
    named = context.params.get("topics") or context.params.get("topic")
    return _partitions(context, [named] if isinstance(named, str) else list(named or ()))


def _partitions(context: typer.Context, names: list[str]) -> Proposals:
    async def work(client: KafkaClient) -> Proposals:
        found = (await client.metadata(names)).topics if names else []
        leaders = {each.partition_index: each.leader_id for topic in found for each in topic.partitions}
        return [(str(index), f"led by {leader}") for index, leader in leaders.items()]

    return _asked(context, work)


def offsets() -> Proposals:
    """The offsets that have names."""
    return [("earliest", "the first record that is kept"), ("latest", "the end")]


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
    """The resources for `configs`: topics or ids of brokers, depending on the KIND before it."""
    kind = str(context.params.get("kind") or "")
    if kind == "topic":
        return topics(context, incomplete)
    if kind not in ("broker", "logger"):
        return []

    async def work(client: KafkaClient) -> Proposals:
        return [(str(node_id), "broker") for node_id in client.node_ids()]

    return _asked(context, work)


def broker_ids(context: typer.Context, incomplete: str) -> Proposals:
    """Ids of brokers; after a comma, further ones."""
    typed = incomplete.rpartition(",")[0].split(",") if "," in incomplete else []

    async def work(client: KafkaClient) -> Proposals:
        return [
            (",".join([*typed, str(node_id)]), "broker") for node_id in client.node_ids() if str(node_id) not in typed
        ]

    return [each for each in _asked(context, work) if each[0].startswith(incomplete)]


def topic_keys(incomplete: str) -> Proposals:
    """Keys of topics as `KEY=`; after that, the possible values."""
    return _values("topic", incomplete) if "=" in incomplete else _with_values(_topic_keys(), incomplete)


def deleted_topic_keys() -> Proposals:
    """Keys of topics."""
    return _topic_keys()


def keys(context: typer.Context, incomplete: str) -> Proposals:
    """Keys of the resource in the line as `KEY=`; after that, the possible values."""
    if "=" in incomplete:
        return _values(str(context.params.get("kind") or ""), incomplete)
    return _with_values(_keys(context), incomplete)


def deleted_keys(context: typer.Context) -> Proposals:
    """Keys of the resource in the line."""
    return _keys(context)


def broker_keys(incomplete: str) -> Proposals:
    """Keys of brokers as `KEY=`; after that, the possible values."""
    from barnabas.broker.configuration.definitions import to_text
    from barnabas.broker.configuration.keys import BROKER_KEYS

    if "=" in incomplete:
        return _values("broker", incomplete)
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
        # The default of all brokers has no keys before some are set: any broker has all of them.
        resource = (kinds[kind], str(client.node_ids()[0]) if kind == "brokers" else name)
        found = await describe_configs(client, [resource])
        return [(config.name, config.value or "") for config in found[resource] if not config.read_only]

    return _asked(context, work)


def _with_values(proposals: Iterable[tuple[str, str]], incomplete: str) -> Proposals:
    """`KEY=` for keys; a single match also with its value, or the shell would add a space after the `=`."""
    left = [(key, value) for key, value in proposals if key.startswith(incomplete)]
    words = [(f"{key}=", value) for key, value in left]
    return [*words, *((f"{key}={value}", "as it is") for key, value in left if len(left) == 1 and value)]


def _values(kind: str, incomplete: str) -> Proposals:
    """The possible values of a key of topics, brokers or loggers, if there are few; for lists, one more."""
    from barnabas.broker.configuration.definitions import LIST, choices
    from barnabas.broker.configuration.keys import BROKER_KEYS
    from barnabas.broker.configuration.topics import TOPIC_KEYS
    from barnabas.broker.observability.logs import KAFKA_LEVELS

    name, _, begun = incomplete.partition("=")
    if kind == "logger":
        return [(f"{name}={level}", "level") for level in KAFKA_LEVELS]
    key = (TOPIC_KEYS if kind == "topic" else BROKER_KEYS).get(name)
    if key is None:
        return []
    typed = begun.split(",")[:-1] if key.type == LIST else []
    before = "".join(f"{item}," for item in typed)
    return [(f"{name}={before}{choice}", "value") for choice in choices(key) if choice not in typed]


def _asked(context: typer.Context, work: Callable[[KafkaClient], Coroutine[Any, Any, Proposals]]) -> Proposals:
    async def connected() -> Proposals:
        connection = connection_options.connection(context, ask=ask_nobody)
        servers = context.params.get("bootstrap_servers") or DEFAULT_BOOTSTRAP_SERVERS
        client = KafkaClient(servers, security=connection.security())
        async with asyncio.timeout(ANSWER_TIMEOUT_S), client:
            return sorted(await work(client))

    with contextlib.suppress(ClientError, TimeoutError):
        return asyncio.run(connected())
    return []
