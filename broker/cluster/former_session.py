"""Ends the ZooKeeper session that this broker's former process left behind when it was killed, and determines whether
records may be lost that the former process had acknowledged.

ZooKeeper keeps the registration of a dead process until the session times out, and a restarted broker would have to
wait for that. So each process notes its session's id and password in a log directory. The lock of that directory proves
that the former process has ended; the next one then ends the noted session. A copy of the directory has the note, too,
but proves nothing: the original broker may be alive. So the note identifies the directory itself, by properties that a
copy does not share, and the boot of the machine.

After another boot the content of the page cache is lost, and records with it. The note says so until the controller
knows it and this broker has carried out its requests: if the process ends before, the next one must not appear to have
all records.
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
    """The log directories of this broker, whose locks it holds (`storage/log_manager.py`)."""

    @property
    def files(self) -> Files: ...

    @property
    def threads(self) -> Threads: ...

    @property
    def directories(self) -> list[Path]: ...


class SessionNote:
    """The note of a process's session, in the first log directory; all directories are searched, as one may be missing
    now.

    If the note cannot be written or read, the next start takes longer, and nothing else: it is logged. `boot_id`
    identifies the boot of the machine, empty if unknown; `is_on_disk` returns whether all records that former processes
    acknowledged are on the disk in any case, as they stopped cleanly, or flushed first. It is called once the logs are
    loaded.
    """

    def __init__(self, logs: LockedDirectories, boot_id: str, is_on_disk: Callable[[], bool]) -> None:
        self._logs = logs
        self._boot_id = boot_id or _UNKNOWN_BOOT
        self._is_on_disk = is_on_disk
        self._credentials: SessionCredentials | None = None
        self._turn = asyncio.Lock()
        self._is_lacking = False
        self._is_machines_first = False
        """Whether there is no proof that the machine has been up since the former process."""

    @property
    def may_lack_records(self) -> bool:
        """Whether records that this broker acknowledged may be lost, and the controller may not know it."""
        return self._is_lacking or (self._is_machines_first and not self._is_on_disk())

    async def read(self) -> SessionCredentials | None:
        """The session of the former process, if that did not end it and it was this broker's; sets
        `may_lack_records`."""
        return await self._logs.threads.call(self._read)

    async def write(self, credentials: SessionCredentials) -> None:
        """Note the session of this process."""
        self._credentials = credentials
        await self._keep()

    async def lacks_nothing(self) -> None:
        """The controller knew which records this broker may lack when it sent the roles of partitions: from now on this
        broker follows, or leads partitions of which no replica has more records."""
        if self.may_lack_records:
            self._is_lacking = self._is_machines_first = False
            await self._keep()

    async def _keep(self) -> None:
        """Write the current note after earlier writes are done: threads may write in another order, and the last write
        must not contain an expired session."""
        async with self._turn:
            if self._credentials is not None:
                await self._logs.threads.call(self._write, self._credentials)

    async def delete(self) -> None:
        """Delete the note: this process has ended its session."""
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
        # Either the end of the former process is unknown, or these directories are empty and replace others.
        self._is_machines_first = True
        return None

    def _decode(self, path: str) -> SessionCredentials | None:
        ((session_id, password, boot_id, directory, records),) = decode_checkpoint(read_file(self._logs.files, path))
        credentials = SessionCredentials(int(session_id), bytes.fromhex(password))
        self._is_lacking = records != _COMPLETE
        self._is_machines_first = boot_id != self._boot_id or boot_id == _UNKNOWN_BOOT
        if (boot_id, directory) != (self._boot_id, self._identity(path)):
            logger.info(
                "the session in %s is left to time out: the machine was started since, or this is a copy of the"
                " directory of a broker that may be alive",
                path,
            )
            return None
        return credentials

    def _identity(self, path: str) -> str:
        """The identity of a file's directory, which its copies do not share, during one boot of the machine."""
        return "{}:{}".format(*self._logs.files.stat(path.rpartition("/")[0]).identity)

    def _write(self, credentials: SessionCredentials) -> None:
        files = self._logs.files
        for path in self._paths[:1]:
            try:
                records = _LACKING if self.may_lack_records else _COMPLETE
                identity = self._identity(path)
                line = f"{credentials.session_id} {credentials.password.hex()} {self._boot_id} {identity} {records}"
                # The password allows to end the session: the file must be private at all times.
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
