"""Whom `barnabas zookeeper` listens to."""

import pytest

from barnabas.broker.cli.zookeeper_process import loopback_address


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1:0", "127.0.0.1"), ("localhost:7", "127.0.0.1"), ("[::1]:7", "::1")]
)
def test_this_machine_may_connect(address: str, host: str) -> None:
    assert loopback_address(address)[0] == host


@pytest.mark.parametrize("address", ["0.0.0.0:7", "[::]:7", "192.0.2.1:7", "example.org:7", ":7"])
def test_nobody_else_may(address: str) -> None:
    with pytest.raises(ValueError, match="only this machine may connect"):
        loopback_address(address)
