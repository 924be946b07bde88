"""Apache Kafka's Java clients, in a Java process of the driver's own."""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from driver import NOTHING, OK, Login, serve
from py4j.protocol import Py4JJavaError

from barnabas.broker.security.sasl.jaas import LOGIN_MODULES, LoginModule
from tools.jvm.shared import SharedJvm

VERSION = "4.3.0"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"
"""Java's clients read tokens from files and web addresses that are named in these properties of the system alone."""


class Java:
    """The clients, in one Java process. `folder` is for tokens."""

    def __init__(self, jvm: SharedJvm, folder: Path) -> None:
        self._java: Any = jvm.java
        self._folder = folder
        self._strings = self._java.org.apache.kafka.common.serialization
        self._clients = self._java.org.apache.kafka.clients
        self._tokens = 0

    def _properties(self, login: Login, **more: object) -> Any:
        found: dict[str, object] = {"bootstrap.servers": login.servers, "security.protocol": login.protocol}
        if login.has_tls:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.ca}
        if login.certificate:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.certificate}
        if login.mechanism:
            found |= self._sasl(login)
        properties = self._java.java.util.Properties()
        for key, value in (found | more).items():
            properties.put(key.replace("_", "."), str(value))
        return properties

    def _sasl(self, login: Login) -> dict[str, object]:
        found: dict[str, object] = {"sasl.mechanism": login.mechanism}
        if login.mechanism != "OAUTHBEARER":
            options = {"username": login.username, "password": login.password}
            return found | {"sasl.jaas.config": LoginModule(LOGIN_MODULES[login.mechanism], options=options).line()}
        self._tokens += 1
        path = self._folder / f"{self._tokens}"
        path.write_text(login.token)
        self._java.java.lang.System.setProperty(f"{ALLOWED}.urls", path.as_uri())
        self._java.java.lang.System.setProperty(f"{ALLOWED}.files", str(path))
        return found | {
            "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }

    def produce(self, login: Login) -> str:
        producer = None
        try:
            properties = self._properties(login, max_block_ms=int(1000 * login.deadline_s))
            strings = self._strings.StringSerializer
            producer = self._clients.producer.KafkaProducer(properties, strings(), strings())
            unit = self._java.java.util.concurrent.TimeUnit.MILLISECONDS
            sent = producer.send(self._clients.producer.ProducerRecord(login.topic, "1"))
            sent.get(int(1000 * login.deadline_s), unit)
        except Py4JJavaError as error:
            return name(error)
        finally:
            if producer is not None:
                producer.close(self._duration(0))
        return OK

    def consume(self, login: Login) -> str:
        consumer = None
        try:
            properties = self._properties(login, group_id=login.group, auto_offset_reset="earliest")
            strings = self._strings.StringDeserializer
            consumer = self._clients.consumer.KafkaConsumer(properties, strings(), strings())
            consumer.subscribe(self._java.java.util.List.of(login.topic))
            records = consumer.poll(self._duration(login.deadline_s))
            return NOTHING if records.isEmpty() else OK
        except Py4JJavaError as error:
            return name(error)
        finally:
            if consumer is not None:
                with suppress(Py4JJavaError):
                    consumer.close(self._duration(1))

    def _duration(self, seconds: float) -> Any:
        return self._java.java.time.Duration.ofMillis(int(1000 * seconds))


def name(error: Py4JJavaError) -> str:
    """The class of the error, or of what a Future or a constructor wraps."""
    found = error.java_exception
    while found.getClass().getSimpleName() in ("ExecutionException", "KafkaException") and found.getCause() is not None:
        found = found.getCause()
    return str(found.getClass().getSimpleName())


if __name__ == "__main__":
    with SharedJvm(VERSION) as jvm, tempfile.TemporaryDirectory() as folder:
        java = Java(jvm, Path(folder))
        serve(partial(Java.produce, java), partial(Java.consume, java))
    sys.exit(0)
