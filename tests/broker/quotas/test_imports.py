"""What a broker without quotas does not import."""

import sys

import pytest

from tools.processes import children

SCRIPT = """
import sys
import barnabas.broker.server
from barnabas.broker.handlers import load_handler, served_apis
for key in served_apis():
    load_handler(key)
print(sorted(name for name in sys.modules if name.startswith("barnabas.broker.quotas.")))
print("barnabas.broker.api.metering" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.live
def test_nothing_of_quotas_is_imported_before_there_is_one() -> None:
    """Neither at the start nor when a client asks for the versions of all APIs."""
    done = children.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]
