"""The broker, with a record of the paths that it changes in file systems: `python -m tests.support.changed_paths FILE
serve ...`.

FILE gets a line of JSON, [event, path], for each path that the process opens for writing, creates, renames, links or
removes, according to Python's audit events. This includes files that are closed or removed soon after. Changes made
inside libraries are not recorded: for SQLite only the database is noted. For other processes their program is noted.
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
"""The positions of the paths among the arguments of each audit event."""


class Record:
    """An audit hook that writes events to a file."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        positions = PATHS.get(event)
        if positions is None or (event == "open" and not _is_for_writing(arguments[2])):
            return
        for position in positions:
            path = arguments[position]
            if not isinstance(path, int):  # an open descriptor, whose opening was noted already
                self._write(event, os.fsdecode(path))  # type: ignore[arg-type]

    def _write(self, event: str, path: str) -> None:
        line = json.dumps([event, os.path.join(os.getcwd(), path)]) + "\n"
        os.write(self._descriptor, line.encode())


def _is_for_writing(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & WRITING)


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # bytecode is written by Python, not by the broker
    sys.addaudithook(Record(sys.argv[1]))
    barnabas(sys.argv[2:])
