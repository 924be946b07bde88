"""The metadata store's behaviour for each failing system call: `python -m tests.support.refused_store FOLDER`.

SQLite makes its calls itself, so libfiu makes them fail (the process runs with its libraries preloaded). Prints a line
of JSON for each cell: the action, the number of the call, the error, the failed call, the store's response, whether it
continues, and whether it is intact after it was opened again.
"""

import asyncio
import ctypes
import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.clock import ManualClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.interface import StoreUnavailable

ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EACCES)
POINTS: Final = {
    "write": ("posix/io/rw/pwrite", "posix/io/sync/fdatasync", "posix/io/rw/ftruncate"),
    "open": ("posix/io/oc/open",),
}
REFUSALS: Final = {"write": 3, "open": 4}
"""The number of calls of each action that fail, one at a time."""

_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Calls:
    """The calls at libfiu's points; the call with the given number fails."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.refuse = -1
        self.error = 0
        self.is_watching = False
        self._library = ctypes.CDLL("libfiu.so.0")
        self._callback = _CALLBACK(self._called)  # must live as long as the library may call it

    def enable(self, points: tuple[str, ...]) -> None:
        for point in points:
            self._library.fiu_enable_external(point.encode(), 1, None, 0, self._callback)

    def _called(self, name: bytes, _failnum: object, failinfo: "ctypes._Pointer[ctypes.c_void_p]", _: object) -> int:
        if not self.is_watching:
            return 0
        self.made.append(name.decode().rpartition("/")[2])
        if len(self.made) - 1 != self.refuse:
            return 0
        failinfo[0] = ctypes.c_void_p(self.error)
        return 1

    def watch(self, refuse: int = -1, error: int = 0) -> None:
        self.made, self.refuse, self.error, self.is_watching = [], refuse, error, True


async def run_cell(path: Path, what: str, calls: Calls, refuse: int, error: int) -> dict[str, object]:
    """Run one failure, with a new store in a folder."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    file = str(path / "metadata.sqlite")
    store = EmbeddedStore(file, clock)
    await store.open()
    session = await store.session()
    await session.create("/before", b"x" * 3_000)
    is_lost: list[bool] = []
    session.on_expired(lambda: is_lost.append(True))
    if what == "open":
        await store.close()
        store = EmbeddedStore(file, clock)
    answer = "done"
    calls.watch(refuse, error)
    try:
        if what == "open":
            await store.open()
        else:
            await session.create("/during", b"y" * 9_000)
    except StoreUnavailable as problem:
        answer = str(problem)
    made, calls.is_watching = calls.made, False
    goes_on = await _works(lambda: session.create("/after")) if what == "write" else False
    await asyncio.sleep(0)
    await store.close()
    store = EmbeddedStore(file, clock)
    await store.open()
    session = await store.session()
    found = {name: (await session.get(f"/{name}"))[0] for name in await session.get_children("/")}
    is_well = found.get("before") == b"x" * 3_000 and await _works(lambda: session.create("/again"))
    is_well = is_well and (answer != "done" or what == "open" or found.get("during") == b"y" * 9_000)
    await store.close()
    return {
        "what": what, "number": refuse, "error": errno.errorcode.get(error), "calls": made, "answer": answer,
        "goes_on": goes_on, "is_lost": bool(is_lost), "is_well": is_well,
    }  # fmt: skip


async def _works(change: Callable[[], object]) -> bool:
    try:
        await change()  # type: ignore[misc]
    except StoreUnavailable:
        return False
    return True


def _new(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


async def main(folder: Path) -> None:
    """All cells: the first, the middle and the last call, at a start also the second, which opens the write-ahead log;
    each error."""
    calls = Calls()
    for points in POINTS.values():
        calls.enable(points)
    for what in POINTS:
        made = (await run_cell(_new(folder / what), what, calls, -1, 0))["calls"]
        assert isinstance(made, list)
        for number in sorted({0, len(made) // 2, len(made) - 1} | ({1} if what == "open" else set())):
            for error in ERRORS:
                cell = await run_cell(_new(folder / f"{what}-{number}-{error}"), what, calls, number, error)
                sys.stdout.write(json.dumps({**cell, "refused": cell["calls"][number]}) + "\n")  # type: ignore[index]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
