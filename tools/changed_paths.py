"""The broker, and a record of what it changes in file systems: `python -m tools.changed_paths FILE serve ...`.

FILE gets a line of JSON, [event, path], for each path that the process opens for writing, makes, renames, links or
removes, by Python's audit events: also what is closed or gone soon after. Not what libraries do by themselves: of
SQLite only the database is noted. Other processes are noted by the program that they run.
"""

import json
import os
import sys
from typing import Final

from barnabas.__main__ import main as barnabas

WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

PATHS: Final = {
    "open": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.link": (1,),
    "os.mkdir": (0,),
    "os.posix_spawn": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "sqlite3.connect": (0,),
    "subprocess.Popen": (0,),
}
"""Which arguments of an audit event are paths."""


class Record:
    """An audit hook that writes to a file."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        positions = PATHS.get(event)
        if positions is None or (event == "open" and not _is_for_writing(arguments[2])):
            return
        for position in positions:
            path = arguments[position]
            if not isinstance(path, int):  # a descriptor was opened before
                self._write(event, os.fsdecode(path))  # type: ignore[arg-type]

    def _write(self, event: str, path: str) -> None:
        line = json.dumps([event, os.path.join(os.getcwd(), path)]) + "\n"
        os.write(self._descriptor, line.encode())


def _is_for_writing(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & WRITING)


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # that is Python's doing, and not concerned
    sys.addaudithook(Record(sys.argv[1]))
    barnabas(sys.argv[2:])
