"""Writes docs/configuration.md from the tables of configuration keys: `python -m tools.references.configuration`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.broker.configuration.definitions import INTERNAL, ConfigKey, to_text
from barnabas.broker.configuration.keys import BROKER_KEYS, SECURITY_KEYS, broker_documentation
from barnabas.broker.configuration.tables.other import OTHER_ROWS
from barnabas.broker.configuration.topics import TOPIC_KEYS, TOPIC_SYNONYMS

TARGET = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

WITHOUT_EFFECT = frozenset(row[0] for row in OTHER_ROWS)

INTRODUCTION = """# Configuration

`barnabas serve [SERVER_PROPERTIES] [--override KEY=VALUE]...` takes Kafka's own keys. A value is looked for in this
order: command-line options, `--override`, environment variables, the properties file, the default. `barnabas config
check FILE` says what is wrong with a file without starting.

Environment variables are named as in Kafka's official image: `KAFKA_` and the key in upper case, with `_` for a dot,
`__` for an underscore and `___` for a dash. `KAFKA_CFG_`, as in Bitnami's image, is the same, and counts where the
other form is not set. `CLUSTER_ID` becomes the cluster id.

Unknown keys are warned of; keys that ask for what is not there (TLS, SASL, ACLs) are errors. Keys of KRaft and of
tiered storage are accepted, listed by DescribeConfigs with Kafka's defaults, and have no effect.

Keys that begin with `zookeeper.` are told of in [With ZooKeeper](zookeeper.md).

Dynamic keys can be changed at run time, for one broker or for all: `barnabas configs alter --help`.

*This page is written by `make docs`.*
"""


def reference() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Broker", "", "| key | default | dynamic | meaning |", "|---|---|---|---|"]
    lines += _broker_rows()
    lines += ["", "## Topics", "", "| key | default | default set by | meaning |", "|---|---|---|---|"]
    lines += _topic_rows()
    return "\n".join(lines) + "\n"


def _broker_rows() -> Iterator[str]:
    for name, key in sorted(BROKER_KEYS.items()):
        if key.visibility != INTERNAL and name not in SECURITY_KEYS and name not in WITHOUT_EFFECT:
            yield f"| `{name}` | {_default(key)} | {key.mode} | {_cell(broker_documentation(name))} |"


def _topic_rows() -> Iterator[str]:
    for name, key in sorted(TOPIC_KEYS.items()):
        if key.visibility != INTERNAL:
            synonyms = ", ".join(f"`{synonym}`" for synonym in TOPIC_SYNONYMS.get(name, ()))
            yield f"| `{name}` | {_default(key)} | {synonyms} | {_cell(key.documentation)} |"


def _default(key: ConfigKey[Any]) -> str:
    if key.name == "log.dir":
        return "`$XDG_DATA_HOME/barnabas/NODE_ID`"  # Kafka's default would be /tmp/kafka-logs
    text = to_text(key.default)
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(reference())
