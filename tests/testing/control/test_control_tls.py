"""The control port with TLS: verbs as ever, for clients that trust its certificate."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]


def ask(url: str, context: ssl.SSLContext, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
        return json.load(response)


def test_verbs_over_tls(tmp_path: Path) -> None:
    """Brokers are made by POST /brokers; who trusts another authority, or speaks no TLS, gets nothing."""
    authority = Authority(tmp_path)
    store = f"listener.name.control.ssl.keystore.location={authority.key_store('control')}"
    with BarnabasControl("--override", store) as control:
        assert control.url.startswith("https://127.0.0.1:")
        context = authority.client()
        made = ask(f"{control.url}/brokers", context, {"name": "other"})
        assert isinstance(made, dict)
        assert made["name"] == "other"
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(f"{control.url}/brokers", Authority(tmp_path, "stranger").client())
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            ask(f"{control.url.replace('https', 'http')}/brokers", context)
        assert "TLS handshakes from 127.0.0.1 on listener the control port fail" in control.log_text()
