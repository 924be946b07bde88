"""AlterConfigs on keys of SASL: what may change, what is encrypted in the store, and that a change applies at the next
start."""

import logging
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.configuration.changes import BROKER, DELETE, SET
from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.plain import Client, Credentials
from barnabas.broker.server import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.running import running
from tests.broker.sasl_clients import ALICE, sasl_listener, wire

pytestmark = pytest.mark.anyio

JAAS: Final = "sasl.jaas.config"
CAROL: Final = Client(Credentials("carol", "c-secret"))
CAROLS_LINE: Final = jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, options={"user_carol": "c-secret"}).line()
TOKENS_LINE: Final = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE).line()
ENCODER: Final = {"password.encoder.secret": "a secret"}
PLAIN_IN_THE_FILE: Final = "listener.name.clients.plain.sasl.jaas.config"


def unprefixed() -> dict[str, str]:
    """A listener with PLAIN, whose line has no prefix: one of the dynamic configuration replaces it."""
    keys = sasl_listener("PLAIN")
    keys[JAAS] = keys.pop(PLAIN_IN_THE_FILE)
    return {**keys, **ENCODER, "connection.failed.authentication.delay.ms": "0"}


async def alter(broker: Broker, name: str, value: str | None, resource: str | None = None) -> tuple[ErrorCode, str]:
    """Set a key of the broker, or delete it."""
    config = AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=BROKER,
                resource_name=str(broker.node_id) if resource is None else resource,
                configs=[config],
            )
        ]
    )
    async with wire(broker) as client:
        assert (await client.log_in(ALICE)).error_code == 0
        [found] = (await client.ask(request, 1)).responses
    return ErrorCode.of(found.error_code), found.error_message


async def may_log_in(broker: Broker, mechanism: Client) -> bool:
    async with wire(broker) as client:
        return bool((await client.log_in(mechanism)).error_code == 0)


async def described(broker: Broker, *names: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(broker.node_id), configuration_keys=list(names)
    )
    async with wire(broker) as client:
        assert (await client.log_in(ALICE)).error_code == 0
        [found] = (await client.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4)).results
    return {each.name: each for each in found.configs}


@pytest.mark.parametrize("name", [JAAS, PLAIN_IN_THE_FILE])
async def test_a_line_applies_at_the_next_start(tmp_path: Path, name: str) -> None:
    """It is encrypted in the store, and shown to nobody. The former line is back when it is deleted."""
    configs = unprefixed()
    both = jaas.LoginModule(
        jaas.PLAIN_LOGIN_MODULE, options={"user_alice": "a-secret", "user_carol": "c-secret"}
    ).line()
    async with running(tmp_path, **configs) as broker:
        assert await alter(broker, name, both) == (ErrorCode.NONE, None)
        stored = broker.configs.overrides("brokers", str(broker.node_id))[name]
        assert stored.startswith("keyFactoryAlgorithm:PBKDF2WithHmacSHA512,")
        shown = (await described(broker, name))[name]
        assert (shown.value, shown.is_sensitive, shown.config_source) == (None, True, 2)
        assert [each.value for each in shown.synonyms] == [None] * len(shown.synonyms)
        assert await alter(broker, "sasl.login.refresh.buffer.seconds", "100") == (ErrorCode.NONE, None)
        assert not await may_log_in(broker, CAROL)
    async with running(tmp_path, **configs) as broker:
        assert await may_log_in(broker, CAROL)
        assert await alter(broker, name, None) == (ErrorCode.NONE, None)
        assert broker.configs.overrides("brokers", str(broker.node_id)).keys() == {"sasl.login.refresh.buffer.seconds"}
    async with running(tmp_path, **configs) as broker:
        assert not await may_log_in(broker, CAROL)
        assert await may_log_in(broker, ALICE)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (PLAIN_IN_THE_FILE, TOKENS_LINE, "sasl.jaas.config for PLAIN: PLAIN needs org.apache.kafka"),
        ("listener.name.clients.sasl.enabled.mechanisms", "X", "sasl.enabled.mechanisms: X is not one of"),
        (JAAS, "x", "sasl.jaas.config for PLAIN: the login module is not followed by a control flag"),
        (JAAS, TOKENS_LINE, "sasl.jaas.config for PLAIN: PLAIN needs org.apache.kafka"),
        (JAAS, 'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";', "PLAIN needs"),
        (
            "listener.name.other.sasl.jaas.config",
            'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";',
            "other login modules than Kafka's cannot be loaded",
        ),
        ("listener.name.other.scram-sha-256.sasl.jaas.config", CAROLS_LINE, "SCRAM-SHA-256 needs org.apache.kafka"),
        ("sasl.enabled.mechanisms", "PLAIN,X", "sasl.enabled.mechanisms: X is not one of"),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256", "sasl.jaas.config for SCRAM-SHA-256: "),
        ("sasl.login.refresh.buffer.seconds", "soon", "Not a number of type SHORT"),
        *(
            (name, value, "Cannot update these configs dynamically")
            for name, value in (
                ("sasl.oauthbearer.jwks.endpoint.url", "file:///etc/passwd"),
                ("listener.name.other.sasl.oauthbearer.token.endpoint.url", "http://x/"),
                ("listener.name.other.plain.sasl.server.callback.handler.class", "a.B"),
                ("sasl.login.class", "a.B"),
                ("principal.builder.class", "a.B"),
                ("sasl.kerberos.kinit.cmd", "/bin/sh"),
                ("listener.name.other.gssapi.sasl.kerberos.kinit.cmd", "/bin/sh"),
                ("connections.max.reauth.ms", "1"),
            )
        ),
    ],
)
async def test_refused_changes(tmp_path: Path, name: str, value: str, told: str) -> None:
    """Classes, URLs and commands are never taken, nor what no mechanism can be made of."""
    async with running(tmp_path, **unprefixed()) as broker:
        code, message = await alter(broker, name, value)
        assert code is ErrorCode.INVALID_REQUEST
        assert told in message
        assert "c-secret" not in message
        assert broker.configs.overrides("brokers", str(broker.node_id)) == {}


async def test_lines_need_a_secret(tmp_path: Path) -> None:
    """Without password.encoder.secret none is stored, nor for all brokers."""
    configs = unprefixed()
    async with running(tmp_path, **configs) as broker:
        code, message = await alter(broker, JAAS, CAROLS_LINE, "")
        assert (code, "These configs belong to single brokers" in message) == (ErrorCode.INVALID_REQUEST, True)
    del configs["password.encoder.secret"]
    async with running(tmp_path, **configs) as broker:
        code, message = await alter(broker, JAAS, CAROLS_LINE)
        assert (code, "set password.encoder.secret" in message) == (ErrorCode.INVALID_REQUEST, True)


async def test_a_listener_that_comes_later(tmp_path: Path) -> None:
    """Its keys may be set before it is there; they stay while others change."""
    configs = unprefixed()
    key = "listener.name.later.plain.sasl.jaas.config"
    async with running(tmp_path, **configs) as broker:
        assert await alter(broker, key, CAROLS_LINE) == (ErrorCode.NONE, None)
    configs["listeners"] += ",LATER://127.0.0.1:0"
    configs["listener.security.protocol.map"] += ",LATER:SASL_PLAINTEXT"
    async with running(tmp_path, **configs) as broker:
        async with wire(broker, "LATER") as client:
            assert (await client.log_in(CAROL)).error_code == 0
        assert not await may_log_in(broker, CAROL)
        assert await alter(broker, "log.retention.ms", "60000") == (ErrorCode.NONE, None)
        assert key in broker.configs.overrides("brokers", str(broker.node_id))
        assert await alter(broker, key, CAROLS_LINE.replace("c-secret", "d-secret")) == (ErrorCode.NONE, None)
    async with running(tmp_path, **configs) as broker, wire(broker, "LATER") as client:
        assert (await client.log_in(Client(Credentials("carol", "d-secret")))).error_code == 0


async def test_lines_that_do_not_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was written into the store past the checks, or does not fit the file any more, is left out with an error."""
    configs = unprefixed()
    async with running(tmp_path, **configs) as broker:
        assert await alter(broker, JAAS, CAROLS_LINE.replace("user_carol", "user_alice")) == (ErrorCode.NONE, None)
    scram = jaas.LoginModule(jaas.SCRAM_LOGIN_MODULE).line()
    configs |= {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", PLAIN_IN_THE_FILE: configs[JAAS], JAAS: scram}
    with caplog.at_level(logging.ERROR):
        async with running(tmp_path, **configs) as broker:
            assert await may_log_in(broker, ALICE)
    [told] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told.startswith("the dynamic configuration of SASL is left out: sasl.jaas.config for SCRAM-SHA-256: ")
    assert "secret" not in told
