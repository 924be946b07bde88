"""The JAAS file: the one section that is asked for, as Java reads it."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cluster.login_file import FILE_BYTES_MAX, LoginFileError, login_module, read_login_module

FILE = """
/* Of two kinds of connections: { not a section } */
KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required
    username="admin" password="}; Client {";   // braces in quotes
};
"Client" {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username=kafka   // a word needs no quotes
    password="it's; \\"quoted\\" }";
};
"""


def test_section() -> None:
    module = login_module(FILE, "Client")
    assert module is not None
    assert module.class_name == "org.apache.zookeeper.server.auth.DigestLoginModule"
    assert module.options == {"username": "kafka", "password": 'it\'s; "quoted" }'}
    other = login_module(FILE, "KafkaServer")
    assert other is not None
    assert other.options["password"] == "}; Client {"


@pytest.mark.parametrize("text", ["", "Server { M required; };", "// Client { M required; };", "Client"])
def test_no_section(text: str) -> None:
    assert login_module(text, "Client") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('Client { M required password="secret" ', "a section of the file does not end"),
        ('Server { M required a="secret"', "a section of the file does not end"),
        ("Client { };", "it names no login module"),
        ("Client { M perhaps; };", "not followed by a control flag"),
        ('Client { M required password="secret" };', "it does not end with a semicolon"),
        ('Client { M required a="secret"; N required b="secret"; };', "more than one login module"),
    ],
)
def test_errors_have_no_secret(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        login_module(text, "Client")
    assert "secret" not in str(error.value)


@given(st.text(st.sampled_from("{};\"'/*\\ \nCliente=a"), max_size=60))
def test_any_text(text: str) -> None:
    """A section, none, or an error of one kind."""
    with contextlib.suppress(ValueError):
        login_module(text, "Client")


def test_files(tmp_path: Path) -> None:
    """The key is named where a file cannot be read."""
    path = tmp_path / "login.conf"
    path.write_text(FILE)
    assert read_login_module(str(path), "Client", "key") is not None
    for content in (b"\xff", b" " * (FILE_BYTES_MAX + 1)):
        path.write_bytes(content)
        with pytest.raises(LoginFileError, match=f"^key: .*{path}"):
            read_login_module(str(path), "Client", "key")
    for missing in ("/no/such/file", "a\0b"):
        with pytest.raises(LoginFileError, match=r"^key: cannot read "):
            read_login_module(missing, "Client", "key")
