"""An ext4 file system in an image file that can lose its power.

`cut` stops it like an emergency shutdown (EXT4_IOC_SHUTDOWN without flushing the journal, which xfstests uses for the
same purpose): from that moment on, nothing gets from the page cache to the image, the running journal commit stays
unfinished, and writes fail. `mount` then acts like a rebooted machine: the journal is replayed, and the files contain
the data that had reached the device. Needs root, loop devices and mkfs.ext4.
"""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

SIZE = 1 << 30
_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, __u32), fs/ext4/ext4.h."""
_WITHOUT_FLUSHING_THE_JOURNAL = struct.pack("I", 2)
_WAIT_WRITE_WAIT = 7
"""SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER, linux/fs.h."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class CannotMount(Exception):
    """This machine does not allow mounting an image; the message contains the reason."""


class CuttableDisk:
    """A mounted ext4 file system of `SIZE` bytes (the image is sparse); a context manager.

    Raises CannotMount.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-disk-"))
        self._image = self._folder / "image"
        self.path = self._folder / "mounted"

    def __enter__(self) -> "CuttableDisk":
        try:
            self.path.mkdir()
            with self._image.open("wb") as image:
                image.truncate(SIZE)
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            self.mount()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.is_mount():
            _run("umount", str(self.path))
        shutil.rmtree(self._folder)

    def cut(self) -> None:
        """Lose power now. All writes fail from now on; readers may still see data in memory."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_FLUSHING_THE_JOURNAL)
        finally:
            os.close(descriptor)

    def turn_read_only(self) -> None:
        """Make the kernel treat the file system as damaged: all writes fail from now on, also to open files."""
        _run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        device = next(line.split()[0] for line in _mounts() if line.split()[1] == str(self.path))
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("by a test")

    def write_back(self, path: Path, start: int, size: int) -> None:
        """Make the kernel write these bytes of a file to the image now, as it may at any time: unsynced pages, in no
        order.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if _libc.sync_file_range(descriptor, start, size, _WAIT_WRITE_WAIT):
                raise OSError(ctypes.get_errno(), f"sync_file_range of {path} failed")
        finally:
            os.close(descriptor)

    def commit(self) -> None:
        """Write the journal, as happens every few seconds: names, sizes, and the allocation of blocks."""
        descriptor = os.open(self.path / "journal-commit", os.O_RDWR | os.O_CREAT)
        try:
            os.write(descriptor, b"x")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def mount(self) -> None:
        """Restore power: mount the content of the device. No file that was opened before the cut may still be open."""
        if self.path.is_mount():
            _run("umount", str(self.path))
        _run("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.path))


def _mounts() -> list[str]:
    return Path("/proc/mounts").read_text().splitlines()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotMount(f"there is no {command[0]} here") from None
    except subprocess.CalledProcessError as error:
        raise CannotMount(f"{' '.join(command[:1])}: {error.stderr.strip()}") from None
