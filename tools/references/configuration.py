"""Writes docs/configuration.md from the tables of configuration keys: `python -m tools.references.configuration`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.broker.configuration.definitions import INTERNAL, ConfigKey, to_text
from barnabas.broker.configuration.keys import BROKER_KEYS, SECURITY_KEYS, broker_documentation
from barnabas.broker.configuration.tables.other import OTHER_ROWS
from barnabas.broker.configuration.topics import TOPIC_KEYS, TOPIC_SYNONYMS
from tools.markdown import wrapped

TARGET = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

WITHOUT_EFFECT = frozenset(row[0] for row in OTHER_ROWS)

INTRODUCTION = """# Configuration

`barnabas serve [SERVER_PROPERTIES] [--override KEY=VALUE]...` takes Kafka's own keys. The first of these that has a
value counts: command-line options, `--override`, environment variables, the properties file, the default.
`barnabas config check FILE` checks a file without starting a broker: its keys and values, and the keys and certificates
that it names, but not the directories, host names and ports of the machine. Environment variables count in this check
only with `--environment`.

Environment variables are named as in Kafka's official image: `KAFKA_` and the key in upper case, with `_` for a dot,
`__` for an underscore and `___` for a dash. `KAFKA_CFG_`, as in Bitnami's image, is the same, and counts where the
other form is not set; as in that image, `SASL_SSL` and `SASL_PLAINTEXT` keep their `_`, and
`KAFKA_CFG_ZOOKEEPER_CLIENTCNXNSOCKET` is `zookeeper.clientCnxnSocket`. An empty variable is an empty value, which keys
with numbers refuse. `CLUSTER_ID` becomes the cluster id.

The broker warns of unknown keys. Keys of KRaft and of tiered storage are accepted, listed by DescribeConfigs with
Kafka's defaults, and have no effect.

[TLS](security/tls.md) and [SASL](security/sasl.md) describe their keys, [Security](security.md#acls) those of ACLs,
[With ZooKeeper](zookeeper.md) those that begin with `zookeeper.`.

Dynamic keys can be changed at run time, for one broker or for all: `barnabas configs alter --help`.

*This page is written by `make docs`.*
"""
BROKER = "In brackets: the default, and whether the key can be changed at run time, for one broker or for all."
TOPICS = "In brackets: the default, and the keys of the broker that set another one."


def reference() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Broker", "", BROKER, "", *_broker_keys()]
    lines += ["", "## Topics", "", TOPICS, "", *_topic_keys()]
    return "\n".join(lines) + "\n"


def _broker_keys() -> Iterator[str]:
    for name, key in sorted(BROKER_KEYS.items()):
        has_effect = bool(key.documentation) if name in SECURITY_KEYS else name not in WITHOUT_EFFECT
        if (key.visibility != INTERNAL or name in SECURITY_KEYS) and has_effect:
            yield _item(key, key.mode, broker_documentation(name))


def _topic_keys() -> Iterator[str]:
    for name, key in sorted(TOPIC_KEYS.items()):
        if key.visibility != INTERNAL:
            synonyms = ", ".join(f"`{synonym}`" for synonym in TOPIC_SYNONYMS.get(name, ()))
            yield _item(key, synonyms, key.documentation)


def _item(key: ConfigKey[Any], remark: str, meaning: str) -> str:
    about = "; ".join(filter(None, (_default(key), remark)))
    return wrapped(f"- **`{key.name}`**{f' ({about})' if about else ''}: {meaning}")


def _default(key: ConfigKey[Any]) -> str:
    if key.name == "log.dir":
        return "`$XDG_DATA_HOME/barnabas/NODE_ID`"  # Kafka's default would be /tmp/kafka-logs
    text = to_text(key.default)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    TARGET.write_text(reference())
