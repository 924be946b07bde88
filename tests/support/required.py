"""The handling of a test whose tool (Java, Node.js, Go, kcat, a container engine, ...) this machine lacks."""

import os
from typing import NoReturn

import pytest

REQUIRE_ALL = "BARNABAS_REQUIRE_ALL"


def tool_missing(reason: object) -> NoReturn:
    """Skip the test; with `BARNABAS_REQUIRE_ALL=1` it fails instead, so that no run passes without a tool."""
    if os.environ.get(REQUIRE_ALL) == "1":
        pytest.fail(f"{reason} ({REQUIRE_ALL}=1)", pytrace=False)
    pytest.skip(str(reason))
