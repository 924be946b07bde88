"""Each refusal of the operating system to SQLite, and its effect on the embedded metadata store."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.refused_store import ERRORS, REFUSALS
from tests.support.required import tool_missing
from tools.processes import children

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = [Path("/usr/lib/fiu/fiu_run_preload.so"), Path("/usr/lib/fiu/fiu_posix_preload.so")]


def promise(what: str, refused: str, error: str, number: int) -> str:
    """SQLite reports a lack of space as such; a quota it reports as a failing disk. A failed sync is final. The store
    tries once more to open a write-ahead log, in the space of its reserve: here that succeeds. SQLite does not need the
    directory, which it opens to sync it."""
    if what == "open":
        is_log = number == 1
        return "no start" if number == 0 or refused == "fdatasync" or (is_log and error == "EACCES") else "starts"
    return "passes" if error == "ENOSPC" and refused != "fdatasync" else "final"


def test_each_refusal_passes_or_is_final(tmp_path: Path) -> None:
    if not all(library.exists() for library in LIBRARIES):
        tool_missing("libfiu is not installed (apt-get install fiu-utils)")
    ended = children.run(
        [sys.executable, "-m", "tests.support.refused_store", str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": ":".join(map(str, LIBRARIES))},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    cells = [json.loads(line) for line in ended.stdout.splitlines()]
    print(f"{len(cells)} cells")
    assert Counter(cell["what"] for cell in cells) == {what: n * len(ERRORS) for what, n in REFUSALS.items()}
    assert {cell["refused"] for cell in cells} == {"open", "pwrite", "fdatasync"}
    problems = []
    for cell in cells:
        promised = promise(cell["what"], cell["refused"], cell["error"], cell["number"])
        is_done = cell["answer"] == "done"
        is_right = {
            "passes": is_done and cell["goes_on"] and not cell["is_lost"],
            "final": not is_done and not cell["goes_on"] and cell["is_lost"],
            "no start": not is_done,
            "starts": is_done,
        }[promised]
        if not (is_right and cell["is_well"]):
            problems.append((promised, cell))
    assert not problems
