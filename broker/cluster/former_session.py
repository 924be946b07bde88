"""The session that this broker's former life left behind with ZooKeeper when it was killed, and its end; and whether
records may be lost that that life had acknowledged.

ZooKeeper keeps the registration of a process that died until the session times out, and a broker that is started again
would have to wait for that. So each life notes its session's id and password in a log directory. The lock of that
directory proves that the former life is over; the next one then ends its session with what it finds. A directory that
was copied has the note, too, but proves nothing: the broker may live that it was copied from. So the note names the
directory itself, by what a copy does not share, and the boot of the machine.

After another boot, what was in the page cache is gone, and records with it. The note says so until the controller has
heard of it and was obeyed: a life that ends before must not be followed by one that seems to have everything.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from barnabas.controller.coordination.interface import SessionCredentials
from barnabas.storage.checkpoints import decode_checkpoint, encode_checkpoint
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import TEMPORARY_SUFFIX, Files, read_file, replace_file, unlink_if_exists, write_file
from barnabas.threads import Threads

logger = logging.getLogger(__name__)

SESSION_FILE = "barnabas-zookeeper-session"

_UNKNOWN_BOOT: Final = "-"

_COMPLETE: Final = "complete"
_LACKING: Final = "lacking"


class LockedDirectories(Protocol):
    """The log directories of this broker, whose locks it has (`storage/log_manager.py`)."""

    @property
    def files(self) -> Files: ...

    @property
    def threads(self) -> Threads: ...

    @property
    def directories(self) -> list[Path]: ...


class SessionNote:
    """The note of a life's session, in the first log directory; it is looked for in all, as one may be missing now.

    A note that cannot be written or read costs time at a next start and nothing else: it is logged. `boot_id` is the
    machine's since it was started, empty if unknown; `is_on_disk` tells whether whatever former lives acknowledged is
    on the disk all the same, as they stopped cleanly, or synced first. It is asked once the logs are loaded.
    """

    def __init__(self, logs: LockedDirectories, boot_id: str, is_on_disk: Callable[[], bool]) -> None:
        self._logs = logs
        self._boot_id = boot_id or _UNKNOWN_BOOT
        self._is_on_disk = is_on_disk
        self._credentials: SessionCredentials | None = None
        self._turn = asyncio.Lock()
        self._is_lacking = False
        self._is_machines_first = False
        """Whether nothing says that the machine has been up since the former life."""

    @property
    def may_lack_records(self) -> bool:
        """Whether records that this broker acknowledged may be gone, and the controller may not have heard of it."""
        return self._is_lacking or (self._is_machines_first and not self._is_on_disk())

    async def read(self) -> SessionCredentials | None:
        """The session of the former life, if that did not end it and it was this broker's; `may_lack_records` goes by
        what it reads."""
        return await self._logs.threads.call(self._read)

    async def write(self, credentials: SessionCredentials) -> None:
        """Note the session of this life."""
        self._credentials = credentials
        await self._keep()

    async def lacks_nothing(self) -> None:
        """The controller knew what this broker may lack when it told it of its partitions: from now on it follows, or
        leads what nobody has more of."""
        if self.may_lack_records:
            self._is_lacking = self._is_machines_first = False
            await self._keep()

    async def _keep(self) -> None:
        """Write what is known once all that was to be written before is: threads may do it in another order, and the
        last one must not be that of a session that has expired."""
        async with self._turn:
            if self._credentials is not None:
                await self._logs.threads.call(self._write, self._credentials)

    async def delete(self) -> None:
        """Delete the note: this life has ended its session."""
        self._credentials = None
        if not self.may_lack_records:
            async with self._turn:
                await self._logs.threads.call(self._delete)

    @property
    def _paths(self) -> Sequence[str]:
        return [str(directory / SESSION_FILE) for directory in self._logs.directories]

    def _read(self) -> SessionCredentials | None:
        for path in self._paths:
            try:
                if self._logs.files.exists(path):
                    return self._decode(path)
            except (OSError, CorruptFile, ValueError) as error:
                logger.warning("%s cannot be read: %s", path, error)
                break
        # Nobody knows when the former life ended, or these directories are empty, and had been another's place.
        self._is_machines_first = True
        return None

    def _decode(self, path: str) -> SessionCredentials | None:
        ((session_id, password, boot_id, directory, records),) = decode_checkpoint(read_file(self._logs.files, path))
        credentials = SessionCredentials(int(session_id), bytes.fromhex(password))
        self._is_lacking = records != _COMPLETE
        self._is_machines_first = boot_id != self._boot_id or boot_id == _UNKNOWN_BOOT
        if (boot_id, directory) != (self._boot_id, self._identity(path)):
            logger.info(
                "the session in %s is not ended: the machine was started anew since, or this is a copy of the directory"
                " of a broker that may live",
                path,
            )
            return None
        return credentials

    def _identity(self, path: str) -> str:
        """What tells the directory of a file from copies of it, during one boot of the machine."""
        return "{}:{}".format(*self._logs.files.stat(path.rpartition("/")[0]).identity)

    def _write(self, credentials: SessionCredentials) -> None:
        files = self._logs.files
        for path in self._paths[:1]:
            try:
                records = _LACKING if self.may_lack_records else _COMPLETE
                identity = self._identity(path)
                line = f"{credentials.session_id} {credentials.password.hex()} {self._boot_id} {identity} {records}"
                # Whoever has the password can end the session: nobody may read it, at no time.
                write_file(files, path + TEMPORARY_SUFFIX, b"")
                files.make_private(path + TEMPORARY_SUFFIX)
                replace_file(files, path, encode_checkpoint([line]))
            except OSError as error:
                logger.warning("%s cannot be written: %s", path, error)

    def _delete(self) -> None:
        for path in self._paths:
            try:
                unlink_if_exists(self._logs.files, path)
            except OSError as error:
                logger.warning("%s cannot be deleted: %s", path, error)
