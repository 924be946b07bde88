"""Configuration keys from environment variables, as the official image and Bitnami's read them.

Source: KafkaDockerWrapper.scala, libkafka.sh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from barnabas.broker.configuration.keys import ENVIRONMENT_SKIPPED, ENVIRONMENT_SKIPPED_PREFIXES

_BITNAMI: Final = "KAFKA_CFG_"
_BITNAMI_LISTENERS: Final = (("sasl.ssl", "sasl_ssl"), ("sasl.plaintext", "sasl_plaintext"))
"""Names of listeners, in which a single `_` of Bitnami's variables stays as it is."""
_BITNAMI_KEYS: Final = {"KAFKA_CFG_ZOOKEEPER_CLIENTCNXNSOCKET": "zookeeper.clientCnxnSocket"}
_LOGIN_CONFIG: Final = "java.security.auth.login.config"
_LOGIN_CONFIG_PROPERTY: Final = re.compile(rf"(?:^|\s)-D{re.escape(_LOGIN_CONFIG)}=(\S+)")


class EnvironmentConfigs(dict[str, str]):
    """Keys and values. `variables` has the variable that each key comes from."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def add(self, key: str, variable: str, text: str) -> None:
        self[key] = text
        self.variables[key] = variable


def environment_configs(environ: Mapping[str, str]) -> EnvironmentConfigs:
    """The keys set by `KAFKA_...` variables, as in the official image: `_` is a dot, `__` an underscore, `___` a dash.

    `KAFKA_CFG_...`, as in Bitnami's image, is the same with its exceptions, and counts if the other form is not set. In
    both an empty variable is an empty value, as some keys have a meaning without one. CLUSTER_ID, with which the
    official image formats its storage, becomes the cluster id. Of the options of the JVM, in KAFKA_OPTS, the file of
    `java.security.auth.login.config` is a key here.
    """
    configs = EnvironmentConfigs()
    for variable, text in sorted(environ.items(), key=lambda item: not item[0].startswith(_BITNAMI)):
        if not variable.startswith("KAFKA_") or variable in ENVIRONMENT_SKIPPED:
            continue
        if not variable.startswith(ENVIRONMENT_SKIPPED_PREFIXES):
            configs.add(_key(variable), variable, text)
    if (found := _LOGIN_CONFIG_PROPERTY.search(environ.get("KAFKA_OPTS", ""))) and _LOGIN_CONFIG not in configs:
        configs.add(_LOGIN_CONFIG, "KAFKA_OPTS", found[1])
    if environ.get("CLUSTER_ID") and "barnabas.cluster.id" not in configs:
        configs.add("barnabas.cluster.id", "CLUSTER_ID", environ["CLUSTER_ID"])
    return configs


def _key(variable: str) -> str:
    name = variable.removeprefix(_BITNAMI).removeprefix("KAFKA_")
    key = name.lower().replace("_", ".").replace("...", "-").replace("..", "_")
    if not variable.startswith(_BITNAMI):
        return key
    for dotted, listener in _BITNAMI_LISTENERS:
        key = key.replace(dotted, listener)
    return _BITNAMI_KEYS.get(variable, key)
