"""The properties in docs/security/tls.md: a broker starts with each of them."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.broker.running import running
from tests.support.certificates import Authority, pkcs12_of

PAGE = Path(__file__).parents[3] / "docs/security/tls.md"
SNIPPETS = [
    snippet
    for snippet in re.findall(r"^```properties\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if "zookeeper.connect" not in snippet  # that one is in tests/broker/cli/test_secure_zookeeper.py
]


def test_there_are_some() -> None:
    assert len(SNIPPETS) == 5


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_broker_starts_with_it(snippet: str, tmp_path: Path) -> None:
    """With other paths, and on free ports."""
    authority = Authority(tmp_path)
    authority.key_store("broker")
    (tmp_path / "broker.p12").write_bytes(pkcs12_of(authority.issue("localhost"), "secret"))
    authority.trust_store.rename(tmp_path / "ca.pem")
    keys = dict(line.split("=", 1) for line in snippet.replace("/etc/barnabas", str(tmp_path)).splitlines())
    configs = {key: re.sub(r"(127\.0\.0\.1):\d+", r"\1:0", value) for key, value in keys.items()}

    async def start() -> None:
        async with running(tmp_path / "data", **configs) as broker:
            assert broker.is_ready
            assert broker._foundation.tls is not None

    asyncio.run(start())
