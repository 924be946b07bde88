"""Three brokers that speak TLS with each other, with certificates on both sides."""

import asyncio
from pathlib import Path

import pytest

from barnabas.broker.configuration.config import ConfigError
from barnabas.broker.network.peer_connection import PeerUnavailable
from barnabas.controller.state import SecurityProtocol
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from tests.broker.whole.cluster import ONE_REPLICA, cluster
from tests.support.certificates import Authority
from tools.waiting import until

pytestmark = pytest.mark.slow


def inter_broker_tls(authority: Authority, key_store: Path) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,INTERNAL:SSL",
        "inter_broker_listener_name": "INTERNAL",
        "listener_name_internal_ssl_keystore_location": str(key_store),
        "listener_name_internal_ssl_truststore_location": str(authority.trust_store),
        "listener_name_internal_ssl_client_auth": "required",
        **ONE_REPLICA,
    }


def test_they_replicate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def scenario() -> None:
        async with cluster(tmp_path, 3, **inter_broker_tls(authority, authority.key_store("broker"))) as brokers:
            assert await brokers.create("t", 1, 3) is ErrorCode.NONE
            leader = await brokers.leader("t")
            for _ in range(3):
                assert await brokers.produce(leader, "t", 0, acks=-1) is ErrorCode.NONE
            await until(lambda: len(brokers.in_sync("t")) == 3)
            for node_id in (1, 2, 3):
                broker = brokers.brokers[node_id]
                assert brokers.log(node_id, "t").log_end_offset == 3
                of_brokers = [each.session for each in broker.connections if each.session.is_broker]
                assert {each.listener.security_protocol for each in of_brokers} <= {"SSL"}
                [endpoint] = [each for each in broker._endpoints() if each.listener == "INTERNAL"]
                assert endpoint.security_protocol is SecurityProtocol.SSL
            assert any(each.session.is_broker for each in brokers.brokers[leader].connections)

    asyncio.run(scenario())


def test_the_name_of_the_host_is_checked(tmp_path: Path) -> None:
    """The certificate of each is of another host than the address under which the others connect."""
    authority = Authority(tmp_path)
    configs = inter_broker_tls(authority, authority.key_store("broker", "elsewhere.example"))

    async def asked(**more: str) -> None:
        async with cluster(tmp_path / str(len(more)), 1, **configs, **more) as brokers:
            broker = brokers.brokers[1]
            address = ("127.0.0.1", broker.socket_server.ports["INTERNAL"])
            await broker.others.peers.connection(2, "test", lambda: address).send(ApiVersionsRequest(), 0)

    with pytest.raises(PeerUnavailable, match=r"cannot be reached: the certificate of the other side is not accepted"):
        asyncio.run(asked())
    asyncio.run(asked(listener_name_internal_ssl_endpoint_identification_algorithm=""))


def test_a_listener_that_does_not_trust_its_own_key(tmp_path: Path) -> None:
    """All brokers have the same settings: none could connect to another."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    configs = inter_broker_tls(authority, authority.key_store("broker"))
    configs["listener_name_internal_ssl_truststore_location"] = str(stranger.trust_store)

    async def start() -> None:
        async with cluster(tmp_path / "data", 1, **configs):
            pass

    with pytest.raises(ConfigError, match="brokers could not connect to each other on this listener"):
        asyncio.run(start())
