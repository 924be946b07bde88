"""Logins of the Python clients by each mechanism: a record comes back, and a wrong password is the client's error of
authentication."""

import asyncio
import secrets
import warnings
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from aiokafka.errors import AuthenticationFailedError as AiokafkaFailure
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from compat_tests.sasl.conftest import MECHANISMS, PASSWORD, SaslCluster
from tools.waiting import PATIENCE_S, wait_until

with warnings.catch_warnings():  # as in kafka_python_client/conftest.py
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

pytestmark = pytest.mark.slow

IN_THE_GATE: Final = {"confluent": "SCRAM-SHA-512", "aiokafka": "SCRAM-SHA-256", "kafka_python": "PLAIN"}
WRONG: Final = {"password": "wrong", "user": "stranger"}


def mechanisms(client: str) -> Any:
    """One mechanism of a client, and librdkafka's OAUTHBEARER, are in the gate."""
    gate = {IN_THE_GATE[client]} | ({"OAUTHBEARER"} if client == "confluent" else set())
    return pytest.mark.parametrize(
        "mechanism", [name if name in gate else pytest.param(name, marks=pytest.mark.full) for name in MECHANISMS]
    )


wrongs = pytest.mark.parametrize("wrong", sorted(WRONG))


def credentials(wrong: str | None) -> tuple[str, str]:
    """The name and the password, one of them wrong."""
    name = "stranger" if wrong == "user" else "alice"
    return name, "wrong" if wrong == "password" else PASSWORD


def token_of(cluster: SaslCluster, wrong: str | None) -> str:
    """A token, signed by another issuer if something is wrong."""
    return cluster.token("alice") if wrong is None else cluster.forged("alice")


# --- librdkafka -----------------------------------------------------------------------------------


def of_confluent(cluster: SaslCluster, mechanism: str, wrong: str | None = None) -> dict[str, Any]:
    name, password = credentials(wrong)
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**settings, "oauth_cb": lambda _: (token_of(cluster, wrong), 2**31)}
    return {**settings, "sasl.username": name, "sasl.password": password}


@mechanisms("confluent")
def test_confluent(sasl_cluster: SaslCluster, mechanism: str, topic_name: str) -> None:
    """A record goes there and back."""
    settings = of_confluent(sasl_cluster, mechanism)
    producer = Producer(settings)
    producer.produce(topic_name, b"value")
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": secrets.token_hex(6)})
    consumer.assign([TopicPartition(topic_name, 0, 0)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"value"


@mechanisms("confluent")
@wrongs
@pytest.mark.usefixtures("forgiven")
def test_confluent_refused(sasl_cluster: SaslCluster, mechanism: str, wrong: str) -> None:
    """The error of librdkafka is _AUTHENTICATION."""
    codes: list[int] = []
    settings = of_confluent(sasl_cluster, mechanism, wrong)
    producer = Producer({**settings, "error_cb": lambda error: codes.append(error.code())})

    def is_refused() -> bool:
        producer.poll(0.1)
        return KafkaError._AUTHENTICATION in codes

    wait_until(is_refused, lambda: codes)


# --- aiokafka -------------------------------------------------------------------------------------


class TokenOfAiokafka(AiokafkaTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def of_aiokafka(cluster: SaslCluster, mechanism: str, wrong: str | None = None) -> dict[str, Any]:
    name, password = credentials(wrong)
    settings = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**settings, "sasl_oauth_token_provider": TokenOfAiokafka(token_of(cluster, wrong))}
    return {**settings, "sasl_plain_username": name, "sasl_plain_password": password}


@mechanisms("aiokafka")
def test_aiokafka(sasl_cluster: SaslCluster, mechanism: str, topic_name: str) -> None:
    """A record goes there and back."""

    async def run() -> None:
        settings = of_aiokafka(sasl_cluster, mechanism)
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic_name, b"value")
        consumer = AIOKafkaConsumer(topic_name, auto_offset_reset="earliest", **settings)
        async with consumer:
            assert (await consumer.getone()).value == b"value"

    asyncio.run(run())


@mechanisms("aiokafka")
@wrongs
@pytest.mark.usefixtures("forgiven")
def test_aiokafka_refused(sasl_cluster: SaslCluster, mechanism: str, wrong: str) -> None:
    """The producer does not start."""

    async def run() -> None:
        producer = AIOKafkaProducer(**of_aiokafka(sasl_cluster, mechanism, wrong))
        try:
            with pytest.raises((AiokafkaFailure, KafkaConnectionError)):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(run())


# --- kafka-python ---------------------------------------------------------------------------------


class TokenOfKafkaPython(KafkaPythonTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def of_kafka_python(cluster: SaslCluster, mechanism: str, wrong: str | None = None) -> dict[str, Any]:
    settings = of_aiokafka(cluster, mechanism, wrong)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = TokenOfKafkaPython(token_of(cluster, wrong))
    return settings


@mechanisms("kafka_python")
def test_kafka_python(sasl_cluster: SaslCluster, mechanism: str, topic_name: str) -> None:
    """A record goes there and back."""
    settings = of_kafka_python(sasl_cluster, mechanism)
    producer = KafkaProducer(**settings)
    producer.send(topic_name, b"value").get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic_name, auto_offset_reset="earliest", **settings)
    assert next(consumer).value == b"value"
    consumer.close()


@mechanisms("kafka_python")
@wrongs
@pytest.mark.usefixtures("forgiven")
def test_kafka_python_refused(sasl_cluster: SaslCluster, mechanism: str, wrong: str) -> None:
    """The producer cannot be made. (Often it reads the end of the connection before the error.)"""
    settings = of_kafka_python(sasl_cluster, mechanism, wrong)
    with pytest.raises(KafkaPythonError):
        KafkaProducer(bootstrap_timeout_ms=2_000, **settings)
