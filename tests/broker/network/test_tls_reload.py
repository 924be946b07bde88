"""Changes of the keys of a running broker: of files, and by AlterConfigs (KIP-226)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from barnabas.broker.configuration.changes import BROKER, DELETE, SET
from barnabas.broker.configuration.config import ConfigError
from barnabas.broker.server import Broker
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.network.test_tls import Client, serving
from tests.support.certificates import Authority, pkcs12_of
from tools.waiting import until


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


PREFIX = "listener.name.ssl."


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def shown_by(broker: Broker, authority: Authority) -> str:
    """The alternative names in the certificate that the broker shows to a new client."""
    client = await Client.connect(broker, authority.client())
    shown = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await client.close()
    names = x509.load_der_x509_certificate(shown).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return ",".join(str(each.value) for each in names.value)


async def answer(broker: Broker, authority: Authority, request: Any, version: int) -> Any:
    client = await Client.connect(broker, authority.client())
    body = memoryview(await client.ask(request, version))
    await client.close()
    _, position = headers.parse_response_header(body, request.API_KEY, version)
    response, _ = codec.decoder(messages.api(request.API_KEY).response_class, version)(body, position, len(body))
    return response


async def alter(broker: Broker, authority: Authority, **values: str | None) -> tuple[ErrorCode, str]:
    """Set keys of the listener, without their prefix and with underscores for dots; None deletes one."""
    configs = [
        AlterableConfig(
            name=PREFIX + name.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=str(broker.node_id), configs=configs)
    response = await answer(broker, authority, IncrementalAlterConfigsRequest(resources=[resource]), 1)
    [found] = response.responses
    await broker._foundation.tls.close()  # type: ignore[union-attr]
    return ErrorCode.of(found.error_code), found.error_message


@in_loop
async def test_a_changed_file_is_read_for_new_connections(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority) as broker:
        before = await Client.connect(broker, authority.client())
        reload = broker._foundation.tls.reload_changed_files
        authority.key_store("broker", "localhost", "127.0.0.1", "second.example")
        await reload()
        assert await shown_by(broker, authority) == "localhost,127.0.0.1,second.example"
        (authority.directory / "broker.pem").write_text("broken")
        with caplog.at_level(logging.ERROR):
            await reload()
            await reload()
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
            f"listener SSL keeps its former key and trusted certificates: {PREFIX}ssl.keystore.location:"
            f" {authority.directory}/broker.pem is neither PEM nor PKCS12"
        ]
        assert await shown_by(broker, authority) == "localhost,127.0.0.1,second.example"
        authority.key_store("broker", "localhost", "127.0.0.1", "second.example", "third.example")
        await reload()
        assert "third.example" in await shown_by(broker, authority)
        before.writer.close()


@in_loop
async def test_keys_are_changed_by_alter_configs(authority: Authority) -> None:
    async with serving(authority, password_encoder_secret="a secret") as broker:
        path = authority.directory / "second.p12"
        leaf = authority.issue("localhost", "127.0.0.1", "second.example")
        path.write_bytes(pkcs12_of(leaf, "open"))
        error = await alter(broker, authority, ssl_keystore_location=str(path), ssl_keystore_password="open")
        assert error == (ErrorCode.NONE, None)
        await until(lambda: "second.p12" in broker._foundation.tls["SSL"].tls.settings.paths[0])
        assert "second.example" in await shown_by(broker, authority)

        stored = broker.configs.overrides("brokers", str(broker.node_id))
        assert stored[f"{PREFIX}ssl.keystore.password"].startswith("keyFactoryAlgorithm:PBKDF2WithHmacSHA512,")
        shown = await described(broker, authority)
        assert shown[f"{PREFIX}ssl.keystore.location"] == str(path)
        assert shown[f"{PREFIX}ssl.keystore.password"] is None
        assert "open" not in shown.values()

        code, message = await alter(broker, authority, ssl_keystore_password="wrong")
        assert code is ErrorCode.INVALID_REQUEST
        assert "second.p12 cannot be read with" in message
        code, message = await alter(broker, authority, ssl_keystore_location="/nowhere")
        assert code is ErrorCode.INVALID_REQUEST
        assert "cannot read /nowhere" in message
        assert "second.example" in await shown_by(broker, authority)

        error = await alter(broker, authority, ssl_keystore_location=None, ssl_keystore_password=None)
        code, message = error
        assert code is ErrorCode.INVALID_REQUEST
        assert "lacks alternative names" in message


async def described(broker: Broker, authority: Authority) -> dict[str, str | None]:
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name=str(broker.node_id), configuration_keys=None)
    response = await answer(broker, authority, DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4)
    [found] = response.results
    synonyms = {each.name: each.value for entry in found.configs for each in entry.synonyms}
    return synonyms | {each.name: each.value for each in found.configs}


@in_loop
async def test_passwords_are_not_stored_without_a_secret(authority: Authority) -> None:
    async with serving(authority) as broker:
        path = authority.directory / "second.p12"
        path.write_bytes(pkcs12_of(authority.issue("localhost", "127.0.0.1"), "open"))
        code, message = await alter(broker, authority, ssl_keystore_location=str(path), ssl_keystore_password="open")
        assert code is ErrorCode.INVALID_REQUEST
        assert message == (
            "listener.name.ssl.ssl.keystore.password: passwords are stored only encrypted: set password.encoder.secret"
            " in the broker's file"
        )


@in_loop
async def test_which_keys_may_change(authority: Authority) -> None:
    async with serving(authority) as broker:
        for name, told in (
            ("listener.name.ssl.ssl.client.auth", "Cannot update these configs dynamically"),
            ("ssl.keystore.location", "only per-listener using the listener prefix"),
        ):
            configs = [AlterableConfig(name=name, config_operation=SET, value="none")]
            resource = AlterConfigsResource(resource_type=BROKER, resource_name=str(broker.node_id), configs=configs)
            response = await answer(broker, authority, IncrementalAlterConfigsRequest(resources=[resource]), 1)
            assert response.responses[0].error_code == ErrorCode.INVALID_REQUEST
            assert told in response.responses[0].error_message


@in_loop
async def test_a_broker_does_not_start_with_a_bad_store(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"listener\.name\.ssl\.ssl\.keystore\.location: cannot read /nowhere"):
        async with serving(authority, listener_name_ssl_ssl_keystore_location="/nowhere"):
            pass
