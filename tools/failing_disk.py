"""The broker on a disk that fails when told to: `python -m tools.failing_disk CALL:PATH serve ...`.

CALL is a method of `OsFiles`; once the file PATH exists, every call of it fails with EIO.
"""

import errno
import os
import sys
from typing import Any

from barnabas.__main__ import main as barnabas
from barnabas.storage.files import OsFiles


def fail_when_told(call: str, path: str) -> None:
    """Wrap one call of the disk."""
    original = getattr(OsFiles, call)

    def wrapped(files: OsFiles, *arguments: Any, **settings: Any) -> Any:
        if os.path.exists(path):
            raise OSError(errno.EIO, f"{call} failed on purpose")
        return original(files, *arguments, **settings)

    setattr(OsFiles, call, wrapped)


if __name__ == "__main__":
    fail_when_told(*sys.argv[1].split(":", 1))
    barnabas(sys.argv[2:])
