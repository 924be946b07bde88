"""How the options of a command and its file of properties become TLS and a login."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from barnabas.broker.cli.app import main
from barnabas.broker.cli.connection_options import PANEL, connection_options
from barnabas.broker.client.client import ClientError
from barnabas.broker.client.security import PLAINTEXT, Tls, UserLogin
from barnabas.broker.client.security_options import Connection
from tools.references.command_line import commands


def connection(ask: Any = lambda user: f"typed by {user}", **given: str) -> Connection:
    return Connection(dict(given), ask)


@pytest.fixture
def properties(tmp_path: Path) -> str:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.username=bob\nsasl.password=of-bob\nbootstrap.servers=b:1\n"
    )
    return str(path)


@pytest.fixture
def ca(tmp_path: Path) -> str:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def test_nothing_is_plaintext() -> None:
    assert connection().security() == PLAINTEXT
    assert connection(password="of the environment").security() == PLAINTEXT


def test_a_file(properties: str) -> None:
    there = connection(command_config=properties)
    assert there.bootstrap_servers == "b:1"
    assert there.security().login == UserLogin("bob", "of-bob")
    assert connection(command_config=properties, password="x").security().login == UserLogin("bob", "of-bob")


def test_a_user_logs_in_over_tls() -> None:
    security = connection(login_user="alice", password="pw").security()
    assert (security.tls, security.login) == (Tls(), UserLogin("alice", "pw"))


def test_a_password_is_asked_for() -> None:
    assert connection(login_user="alice").security().login == UserLogin("alice", "typed by alice")


def test_options_count_before_the_file(properties: str, ca: str) -> None:
    security = connection(command_config=properties, login_user="alice").security()
    assert (security.tls, security.login) == (None, UserLogin("alice", "typed by alice"))
    security = connection(command_config=properties, ca=ca).security()
    assert security.tls is not None
    assert security.tls.trusted == Path(ca).read_bytes()
    assert security.login == UserLogin("bob", "of-bob")


def test_a_ca_alone_is_tls(ca: str) -> None:
    security = connection(ca=ca).security()
    assert security.tls is not None
    assert security.login is None


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ClientError, match=r"/nowhere \(--command-config\) cannot be read: No such file"):
        connection(command_config="/nowhere")


def is_of_connection(option: Any) -> bool:
    return bool(getattr(option, "rich_help_panel", None) == PANEL)


def test_each_command_that_connects_has_the_options() -> None:
    names = {name for option in connection_options() for name in option.opts}
    for path, command in commands():
        has = {name for each in command.params for name in each.opts}
        if "--bootstrap-server" in has:
            assert names - {"--user", "--key"} <= has, path
            own = {name for each in command.params if not is_of_connection(each) for name in each.opts}
            assert ("--as" in has) == ("--user" in own), path
            assert ("--private-key" in has) == ("--key" in own), path


def test_the_file_names_the_servers(
    properties: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where no option and no variable does."""
    monkeypatch.delenv("BARNABAS_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", properties)
    Path(properties).write_text("bootstrap.servers=127.0.0.1:1\n")
    assert main(["topics", "list"]) == 1
    assert "no broker answers at 127.0.0.1:1 (" in capfd.readouterr().err
    assert main(["topics", "list", "-b", "127.0.0.1:2"]) == 1
    assert "no broker answers at 127.0.0.1:2 (" in capfd.readouterr().err
