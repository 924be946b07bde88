"""Kafka's jars, whose `common/message/*.json` define its messages: pinned, downloaded once, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import zipfile
from pathlib import Path

from barnabas.spark_examples.ivy import maven_repository
from barnabas.spark_examples.java import cache_folder, say

SHA256 = {
    "kafka-clients-3.9.1.jar": "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    "kafka-clients-4.3.0.jar": "97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1",
    "kafka-group-coordinator-4.3.0.jar": "98bf277fca9facf134a7599a5c13dc146b9fbaf5ce961dd412914d3ff9b44356",
    "kafka-transaction-coordinator-4.3.0.jar": "1f6cb1ebf449a6772ca22f7470b206a1845bd172fe64131848c80be7c13aa096",
}
"""The jars the generator may use, by file name."""


def fetch(name: str) -> Path:
    """The path of a pinned jar in the cache folder, downloaded from Maven Central if it is missing.

    Errors: ValueError for wrong bytes; OSError if it cannot be downloaded.
    """
    path = cache_folder() / name
    if not path.exists():
        artifact, _, version = name.removesuffix(".jar").rpartition("-")
        url = f"{maven_repository()}org/apache/kafka/{artifact}/{version}/{name}"
        say(f"Fetching {url} ...")
        with urllib.request.urlopen(url, timeout=60) as response:
            content = response.read()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_bytes(content)
        partial.rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256[name]:
        raise ValueError(f"{path} has SHA-256 {digest}, not {SHA256[name]}: delete it and try again")
    return path


def read_definition(jar: str, message: str) -> str:
    """The text of one message definition (JSON with // comments), such as "ProduceRequest"."""
    with zipfile.ZipFile(fetch(jar)) as archive:
        return archive.read(f"common/message/{message}.json").decode()
