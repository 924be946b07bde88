"""A test whose tool is missing is skipped, or fails where everything is required; what Debian has is put in place."""

import re
from pathlib import Path

import pytest

from tests.support.required import REQUIRE_ALL, tool_missing


def test_a_test_without_its_tool_is_skipped(monkeypatch):
    monkeypatch.delenv(REQUIRE_ALL, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no kcat"):
        tool_missing("no kcat")


def test_a_missing_required_tool_fails_the_test(monkeypatch):
    monkeypatch.setenv(REQUIRE_ALL, "1")
    with pytest.raises(pytest.fail.Exception, match="no kcat"):
        tool_missing("no kcat")


def test_each_program_of_debian_is_put_in_place_by_make_prepare():
    """But what comes with the system itself, and a Python package that not every release of Python has."""
    from tools.prepare import DEBIAN_PROGRAMS  # and PySpark, which each worker would wait for

    root = Path(__file__).resolve().parent.parent
    text = "".join(path.read_text() for folder in ("tests", "compat_tests") for path in root.glob(f"{folder}/**/*.py"))
    looked_for = set(re.findall(r"tool_missing\(\"no ([\w-]+)\"\)", text)) - {"systemd-analyze", "pytest-trio"}
    assert looked_for >= {"curl", "kcat"}
    assert looked_for <= set(DEBIAN_PROGRAMS)
    named = set(re.findall(r"tool_missing\(\"[^\"]*apt-get install ([\w-]+)\)", text))
    assert named >= {"jq", "strace"}
    assert named <= set(DEBIAN_PROGRAMS.values())
