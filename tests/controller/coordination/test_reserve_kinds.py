"""The kinds of objects that may be at the path of the reserve's file."""

import os
import threading
from pathlib import Path

import pytest

from barnabas.controller.coordination.reserve import DiskReserve
from tools.waiting import PATIENCE_S


@pytest.mark.parametrize("kind", ["pipe", "directory", "link to nothing"])
def test_a_reserve_that_is_no_file_delays_nothing(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "metadata.sqlite"
    store.write_bytes(b"x")
    path = tmp_path / "metadata.sqlite-reserve"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "no folder" / "nothing")
    made: list[bool] = []
    thread = threading.Thread(target=lambda: made.append(DiskReserve(str(store)).make()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert made == [False]
