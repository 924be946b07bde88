"""Faults of security: logins, certificates, permissions and quotas, as a client meets them. (The recipes have what each
Python client does.)"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security_properties import SecurityProperties
from barnabas.testing import ApiError, Broker, Cluster, Fault
from barnabas.wire.messages.metadata import MetadataRequest
from tools.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(security="sasl_ssl") as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def broker(secured: Broker) -> Iterator[Broker]:
    yield secured
    secured.faults.clear()


def client(broker: Broker, user: str, mechanism: str) -> KafkaClient:
    properties = broker.client_config(user, "java") | ({"sasl.mechanism": mechanism} if mechanism else {})
    return KafkaClient(broker.bootstrap_servers, security=SecurityProperties(properties).security())


def log_in(broker: Broker, user: str = "alice", mechanism: str = "") -> None:
    """Log in, and ask for metadata. Raises ClientError."""

    async def ask() -> None:
        async with client(broker, user, mechanism):
            pass

    asyncio.run(ask())


def refusal(broker: Broker, user: str = "alice", mechanism: str = "") -> str:
    """The error of a client that cannot log in."""
    with pytest.raises(ClientError) as refused:
        log_in(broker, user, mechanism)
    return str(refused.value)


def test_as_many_logins_fail_as_are_asked_for(broker: Broker) -> None:
    fault = broker.faults.fail_authentication(times=2, after=1)
    log_in(broker)
    assert "does not accept user alice" in refusal(broker)
    refusal(broker)
    log_in(broker)
    assert (fault.hits, fault.matches, fault.asked) == (2, 3, 3)
    assert repr(fault) == "<fail authentication SASL_AUTHENTICATION_FAILED (times=2, after=1), 2 hits of 3 requests>"


def test_logins_of_a_user_fail(broker: Broker) -> None:
    with broker.faults.fail_authentication(user="alice") as fault:
        refusal(broker)
        log_in(broker, "bob")
    assert fault.hits == 1
    log_in(broker)


def test_the_message_is_the_tests_own(broker: Broker) -> None:
    errors: list[KafkaError] = []
    with broker.faults.fail_authentication(message="alice has gone"):
        config = broker.client_config("alice")
        admin = AdminClient({**config, "error_cb": errors.append, "log_level": 0})  # type: ignore[dict-item]
        deadline_s = time.monotonic() + PATIENCE_S
        while not errors and time.monotonic() < deadline_s:
            admin.poll(0.1)
    assert "alice has gone" in errors[0].str()


def test_logins_by_a_mechanism_fail(broker: Broker) -> None:
    """By the login, or already by the handshake, as if it were not enabled."""
    with broker.faults.fail_authentication(mechanism="SCRAM-SHA-256"):
        refusal(broker, mechanism="SCRAM-SHA-256")
        log_in(broker, mechanism="SCRAM-SHA-512")
    with broker.faults.fail_authentication("UNSUPPORTED_SASL_MECHANISM", mechanism="SCRAM-SHA-512") as fault:
        assert "SCRAM-SHA-512" in refusal(broker, mechanism="SCRAM-SHA-512")
        log_in(broker, mechanism="SCRAM-SHA-256")
    assert fault.hits == 1


def test_wrong_passwords_are_not_the_faults(broker: Broker) -> None:
    with broker.faults.fail_authentication() as fault:
        properties = broker.client_config("alice", "java")
        properties["sasl.jaas.config"] = re.sub('password="[^"]*"', 'password="no"', properties["sasl.jaas.config"])

        async def ask() -> None:
            security = SecurityProperties(properties).security()
            async with KafkaClient(broker.bootstrap_servers, security=security):
                pass

        with pytest.raises(ClientError):
            asyncio.run(ask())
    assert fault.hits == 0


def test_present_sessions_go_on_until_they_expire(broker: Broker) -> None:
    async def ask() -> None:
        async with client(broker, "alice", "") as connected:
            await connected.send(MetadataRequest(topics=[]))
            with broker.faults.fail_authentication() as fault:
                await connected.send(MetadataRequest(topics=[]))
                assert await asyncio.to_thread(broker.faults.expire_authentication, "bob") == 0
                await connected.send(MetadataRequest(topics=[]))
                assert await asyncio.to_thread(broker.faults.expire_authentication, "alice") == 1
                with pytest.raises(ClientError):
                    await connected.send(MetadataRequest(topics=[]))
                with pytest.raises(ClientError):
                    await connected.send(MetadataRequest(topics=[]))
            assert fault.hits == 1
            await connected.send(MetadataRequest(topics=[]))

    asyncio.run(ask())


def test_a_session_ends_on_the_moved_clock() -> None:
    with Broker(security="sasl_ssl", connections_max_reauth_ms=60_000) as broker:

        async def ask() -> None:
            async with client(broker, "alice", "") as connected:
                await connected.send(MetadataRequest(topics=[]))
                await asyncio.to_thread(broker.clock.advance, 60_001)
                with pytest.raises(ClientError):
                    await connected.send(MetadataRequest(topics=[]))
                await connected.send(MetadataRequest(topics=[]))

        asyncio.run(ask())


def test_an_expired_certificate_is_presented(broker: Broker) -> None:
    log_in(broker)
    with broker.faults.certificate_expired() as fault:
        assert "expired" in refusal(broker)
        broker.restart()
        assert "expired" in refusal(broker)
    assert fault.hits == 2
    log_in(broker)


def test_a_certificate_of_another_host_is_presented(broker: Broker) -> None:
    """Of two faults the last one counts, and then the first one again."""
    with broker.faults.certificate_expired():
        with broker.faults.certificate_of_other_host("kafka.example") as fault:
            assert "127.0.0.1" in refusal(broker)
            assert repr(fault) == "<certificate_of_other_host kafka.example, 1 hits>"
        assert "expired" in refusal(broker)
    log_in(broker)


def test_a_reset_takes_wrong_certificates_away(broker: Broker) -> None:
    broker.faults.certificate_expired()
    broker.reset()
    log_in(broker)
    broker.create_topic("orders")


def test_a_directory_keeps_its_own_certificate(tmp_path: Path) -> None:
    with Broker(security="sasl_ssl", data_dir=tmp_path) as broker:
        own = (tmp_path / "secure" / "broker.pem").read_bytes()
        broker.faults.certificate_expired()
        assert (tmp_path / "secure" / "broker.pem").read_bytes() != own
        broker.kill()
    assert (tmp_path / "secure" / "broker.pem").read_bytes() == own


def errors(broker: Broker, topic: str) -> list[int]:
    """The error of a topic in the metadata for alice."""

    async def ask() -> list[int]:
        async with client(broker, "alice", "") as connected:
            return [each.error_code for each in (await connected.metadata([topic])).topics]

    return asyncio.run(ask())


def test_a_permission_is_taken_away_and_given_back(broker: Broker) -> None:
    assert errors(broker, "orders") == [0]
    with broker.faults.deny("alice", "Describe", topic="orders") as fault:
        assert errors(broker, "orders") == [29]
        assert fault.hits == 1
        assert repr(fault) == "<deny alice DESCRIBE on topic orders, 1 hits>"
        broker.restart()
        assert errors(broker, "orders") == [29]
    assert errors(broker, "orders") == [0]


def test_a_quota_is_given_and_taken_away(broker: Broker) -> None:
    """The former one is there again."""

    def quotas() -> dict[str, str]:
        async def read() -> dict[str, str]:
            found = broker.server.services.configs.overrides("users", "alice")
            return {key: value for key, value in found.items() if "rate" in key or "percentage" in key}

        return broker.call(read())

    with broker.faults.quota("alice", producer_byte_rate=500):
        with broker.faults.quota("alice", producer_byte_rate=1_000, request_percentage=50) as fault:
            assert quotas() == {"producer_byte_rate": "1000", "request_percentage": "50.0"}
            log_in(broker)
            assert fault.hits >= 1
        assert quotas() == {"producer_byte_rate": "500"}
    assert quotas() == {}


def test_a_quota_of_a_client_id_needs_no_security() -> None:
    with Broker() as broker, broker.faults.quota(client_id="reader", consumer_byte_rate=1_000) as fault:
        assert repr(fault) == "<quota of client-id reader: consumer_byte_rate=1000, 0 hits>"


WRONG: dict[str, tuple[Callable[[Broker], Fault], str]] = {
    "no such mechanism": (lambda broker: broker.faults.fail_authentication(mechanism="DIGEST"), "expected one of"),
    "no such error": (lambda broker: broker.faults.fail_authentication("AUTHENTICATION_FAILED"), "no error"),
    "no user yet": (
        lambda broker: broker.faults.fail_authentication("UNSUPPORTED_SASL_MECHANISM", user="alice"),
        "before the user is known",
    ),
    "no resource": (lambda broker: broker.faults.deny("alice"), "one resource"),
    "two resources": (lambda broker: broker.faults.deny("alice", topic="orders", group="g"), "one resource"),
    "no such operation": (lambda broker: broker.faults.deny("alice", "Steal", topic="orders"), "no operation 'Steal'"),
    "no quota": (lambda broker: broker.faults.quota("alice"), "needs one"),
    "quota of nobody": (lambda broker: broker.faults.quota(producer_byte_rate=1), "user="),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(broker: Broker, case: str) -> None:
    make, told = WRONG[case]
    with pytest.raises(ValueError, match=told):
        make(broker)
    assert len(broker.faults) == 0


@pytest.mark.parametrize("new", [Broker, Cluster], ids=["broker", "cluster"])
def test_without_security_the_errors_say_so(new: type[Broker | Cluster]) -> None:
    with new() as owner:
        with pytest.raises(RuntimeError, match='security="sasl_ssl"'):
            owner.faults.certificate_expired()
        with pytest.raises(ApiError, match="authorizer"):
            owner.faults.deny("alice", topic="orders")
        assert owner.faults.expire_authentication() == 0
