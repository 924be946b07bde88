"""A test whose tool is missing is skipped, or fails where everything is required."""

import pytest

from tools.required import REQUIRE_ALL, tool_missing


def test_it_is_skipped(monkeypatch):
    monkeypatch.delenv(REQUIRE_ALL, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no kcat"):
        tool_missing("no kcat")


def test_it_fails_where_everything_is_required(monkeypatch):
    monkeypatch.setenv(REQUIRE_ALL, "1")
    with pytest.raises(pytest.fail.Exception, match="no kcat"):
        tool_missing("no kcat")
