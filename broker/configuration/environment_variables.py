"""Configuration keys from environment variables, as the official image and Bitnami's read them.

Source: KafkaDockerWrapper.scala, libkafka.sh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from barnabas.broker.configuration.keys import ENVIRONMENT_SKIPPED, ENVIRONMENT_SKIPPED_PREFIXES

_BITNAMI: Final = "KAFKA_CFG_"
_LOGIN_CONFIG: Final = "java.security.auth.login.config"
_LOGIN_CONFIG_PROPERTY: Final = re.compile(rf"(?:^|\s)-D{re.escape(_LOGIN_CONFIG)}=(\S+)")


def environment_configs(environ: Mapping[str, str]) -> dict[str, str]:
    """The keys set by `KAFKA_...` variables, as in the official image: `_` is a dot, `__` an underscore, `___` a dash.

    `KAFKA_CFG_...`, as in Bitnami's image, is the same, and counts if the other form is not set. CLUSTER_ID, with which
    the official image formats its storage, becomes the cluster id. Of the options of the JVM, in KAFKA_OPTS, the file
    of `java.security.auth.login.config` is a key here.
    """
    configs = {}
    for variable, text in sorted(environ.items(), key=lambda item: not item[0].startswith(_BITNAMI)):
        if not variable.startswith("KAFKA_") or variable in ENVIRONMENT_SKIPPED:
            continue
        if variable.startswith(ENVIRONMENT_SKIPPED_PREFIXES):
            continue
        name = variable.removeprefix(_BITNAMI).removeprefix("KAFKA_")
        key = name.lower().replace("_", ".").replace("...", "-").replace("..", "_")
        configs[key] = text
    if (found := _LOGIN_CONFIG_PROPERTY.search(environ.get("KAFKA_OPTS", ""))) is not None:
        configs.setdefault(_LOGIN_CONFIG, found[1])
    if environ.get("CLUSTER_ID"):
        configs.setdefault("barnabas.cluster.id", environ["CLUSTER_ID"])
    return configs
