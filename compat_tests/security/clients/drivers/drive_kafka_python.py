"""kafka-python."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from driver import NOTHING, OK, Login, serve

with warnings.catch_warnings():  # as in kafka_python_client/conftest.py
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def arguments(login: Login) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap_servers": login.servers,
        "security_protocol": login.protocol,
        "bootstrap_timeout_ms": int(1000 * login.deadline_s),
    }
    if login.has_tls:
        found["ssl_cafile"] = login.ca
    if login.certificate:
        found |= {"ssl_certfile": login.certificate, "ssl_keyfile": login.certificate}
    if not login.mechanism:
        return found
    found["sasl_mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        return found | {"sasl_oauth_token_provider": Tokens(login.token)}
    return found | {"sasl_plain_username": login.username, "sasl_plain_password": login.password}


def produce(login: Login) -> str:
    producer = None
    try:
        producer = KafkaProducer(**arguments(login))
        producer.send(login.topic, b"1").get(login.deadline_s)
    except KafkaError as error:
        return type(error).__name__
    finally:
        if producer is not None:
            producer.close(timeout=0.2)  # Real time: a record that is refused is not waited for
    return OK


def consume(login: Login) -> str:
    consumer = None
    try:
        consumer = KafkaConsumer(
            login.topic,
            group_id=login.group,
            auto_offset_reset="earliest",
            consumer_timeout_ms=int(1000 * login.deadline_s),
            **arguments(login),
        )
        return OK if next(consumer, None) is not None else NOTHING
    except KafkaError as error:
        return type(error).__name__
    finally:
        if consumer is not None:
            consumer.close()


if __name__ == "__main__":
    logging.disable()
    warnings.simplefilter("ignore")
    serve(produce, consume)
