"""The log directories that are present, new or missing."""

import errno
import itertools
import os
import shutil
import threading
from random import Random

import pytest

from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptFile, DirectoryMismatch, StorageError
from barnabas.storage.known_directories import DirectoryNote, SeenDirectory, identify
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.threads import OsThreads
from barnabas.wire.names import ZERO_TOPIC_ID
from tools.waiting import PATIENCE_S

NOTE = "barnabas-log-directories"
AB = {"a": "/a", "b": "/b"}


def seen(path, directory_id=None, known=AB, *, is_owned=None, problem=""):
    note = None if directory_id is None else DirectoryNote(directory_id, known)
    return SeenDirectory(path, note, note is not None if is_owned is None else is_owned, problem)


def decide(*directories):
    names = itertools.count()
    return identify(directories, lambda: f"new{next(names)}")


def test_directories_are_known_by_their_ids_and_their_paths():
    assert decide(seen("/a"), seen("/b")).present == {"/a": "new0", "/b": "new1"}
    for order in itertools.permutations([seen("/a", "a"), seen("/b", "b")]):
        assert decide(*order) == ({"/a": "a", "/b": "b"}, {})
    # Mounted elsewhere, and a new one where it was.
    assert decide(seen("/a", "a"), seen("/c", "b"), seen("/b")) == ({"/a": "a", "/c": "b", "/b": "new0"}, {})
    # Its note is lost.
    assert decide(seen("/a", "a"), seen("/b", is_owned=True)) == ({"/a": "a", "/b": "b"}, {})
    # A copy of another one.
    assert decide(seen("/a", "a"), seen("/c", "a"), seen("/b", "b")).present == {"/a": "a", "/b": "b", "/c": "new0"}


def test_a_directory_that_others_know_of_is_missed():
    for place in (seen("/b"), seen("/b", problem="Input/output error")):
        present, missing = decide(seen("/a", "a"), place, seen("/c"))
        assert present == {"/a": "a", "/c": "new0"}
        assert missing == {"b": ("/b", place.problem or "it is not there, or empty: is its disk mounted?")}
    found = decide(seen("/a", "a"))
    assert found.missing == {"b": ("/b", "it is not in log.dirs any more")}
    assert found.notes() == {"/a": DirectoryNote("a", AB)}, "it is missed until somebody gives it up"
    # One that nobody knows of, and that cannot be read, is neither there nor missed.
    assert decide(seen("/a", "a", {"a": "/a"}), seen("/b", problem="x")) == ({"/a": "a"}, {})


def test_a_directory_is_missed_though_another_one_has_its_path():
    """A disk that moves from /b to /c is mounted there one start too late: that start has a new directory at /c."""
    early = decide(seen("/a", "a"), seen("/c"))
    ids = {"a": "/a", "new0": "/c", "b": "/b"}
    assert early.notes() == {"/a": DirectoryNote("a", ids), "/c": DirectoryNote("new0", ids)}
    covered = {"new0": ("/c", "another one is at its path: is a disk mounted over it?")}
    for places in itertools.permutations([seen("/a", "a", ids), seen("/c", "b")]):
        mounted = decide(*places)
        assert mounted == ({"/a": "a", "/c": "b"}, covered)
        known = {"a": "/a", "b": "/c", "new0": "/c"}
        assert mounted.notes() == {"/a": DirectoryNote("a", known), "/c": DirectoryNote("b", known)}
    # Both are known by the same path from now on.
    assert decide(seen("/a", "a", known), seen("/c", "new0", ids)).missing.keys() == {"b"}
    assert decide(seen("/a", "a", known), seen("/c")).missing.keys() == {"b", "new0"}
    assert decide(seen("/a", "a", known), seen("/c", is_owned=True)) == ({"/a": "a", "/c": "b"}, covered)


@pytest.mark.parametrize("seed", range(20))
def test_each_note_names_its_own_and_all_noted_directories(seed):
    """Disks are mounted in any order, copied, empty, unreadable or without notes, start after start."""
    random, names, paths = Random(seed), itertools.count(), ["/a", "/b", "/c", "/d"]
    disks: list[DirectoryNote | None] = [None, None, None]
    for _start in range(40):
        chosen = random.sample(range(len(disks)), random.randint(1, len(disks)))
        mounted = dict(zip(random.sample(paths, len(chosen)), chosen, strict=True))
        places = [
            SeenDirectory(path, disks[disk], is_owned=random.random() < 0.8, problem=random.choice(["", "", "", "x"]))
            for path, disk in mounted.items()
        ]
        places = [place._replace(note=None) if place.problem else place for place in places]
        known = identify(places, lambda: f"d{next(names)}")
        for path in list(known.present)[1:]:
            if random.random() < 0.1:
                known = known.without(path, "x")
        noted = {name for place in places if place.note for name in place.note.paths}
        for path, note in known.notes().items():
            assert note.directory_id == known.present[path], seed
            assert note.paths[note.directory_id] == path, seed
            assert DirectoryNote.decode(note.encode()) == note, seed
            assert note.paths.keys() >= noted, seed
            disks[mounted[path]] = note
        assert not set(known.present.values()) & known.missing.keys(), seed
        if random.random() < 0.1:
            disks[random.randrange(3)] = random.choice([None, *disks])  # emptied, or a copy


def test_a_note_is_a_text_of_which_a_line_can_be_taken_out():
    note = DirectoryNote("b", {"a": "/with a space\n", "b": "/b", "c": "/c"})
    assert DirectoryNote.decode(note.encode()) == note
    lines = note.encode().splitlines(keepends=True)
    assert lines[2].startswith(b"b "), "its own first"
    shorter = DirectoryNote.decode(b"".join(lines[:-1]))
    assert shorter == DirectoryNote("b", {"a": "/with a space\n", "b": "/b"})
    for damaged in (b"", b"0\n0\n", b"1\n1\na /a\n", b"0\n1\na\n", b"\xff"):
        with pytest.raises(CorruptFile):
            DirectoryNote.decode(damaged)


def line_of(directory, path):
    """The id that a directory's note has for a path."""
    return next(line.split()[0] for line in (directory / NOTE).read_text().splitlines() if line.endswith(f" {path}"))


class Directories:
    """Two log directories, and managers that use them in any order."""

    def __init__(self, logs, folder):
        logs.stop()
        self.logs = logs
        self.paths = [folder / "d0", folder / "d1"]
        self.away = folder / "away"

    def open(self, *paths):
        manager = LogManager(
            LogEnvironment(self.logs.files, self.logs.clock, OsThreads(), self.logs.new_id),
            LogManagerSettings(paths or self.paths, lambda _topic: LogConfig(), node_id=1),
        )
        manager.lock()
        manager.load()
        manager.set_cluster_id("a-cluster")
        return manager

    def log(self, manager, topic, *, is_new=False):
        return manager.get_or_create(topic, 0, ZERO_TOPIC_ID, LogConfig(), is_new=is_new)

    def refuse(self, refused, below, number):
        """One call of the disk fails where it concerns a path, or what is below it, until `heal`."""

        def refuse(path, *_):
            if f"{path}/".startswith(f"{below}/"):
                raise OSError(number, os.strerror(number))

        self.logs.files.before[refused] = refuse

    def heal(self):
        self.logs.files.before.clear()

    def fill(self):
        """A log in each directory, with one record."""
        manager = self.open()
        for topic in ("t", "u"):
            self.logs.append(self.log(manager, topic, is_new=True), topic.encode())
        manager.close()
        assert (self.paths[0] / "t-0").exists()
        assert (self.paths[1] / "u-0").exists()


@pytest.fixture
def directories(logs, tmp_path):
    yield Directories(logs, tmp_path)
    logs.start()


def test_one_directory_has_no_note(logs):
    assert not (logs.path / NOTE).exists()


@pytest.mark.parametrize("how", ["gone", "empty", "a file", "not in log.dirs"])
def test_no_log_replaces_one_in_a_missing_directory(directories, caplog, how):
    directories.fill()
    first, second = directories.paths
    second.rename(directories.away)
    if how == "empty":
        second.mkdir()
    elif how == "a file":
        second.write_text("")
    manager = directories.open(*directories.paths[: 1 if how == "not in log.dirs" else 2])
    assert list(manager.missing_directories) == [str(second)]
    missed = line_of(first, second)
    assert [record.message for record in caplog.records if "is missing" in record.message] == [
        f"log directory {second} is missing ({manager.missing_directories[str(second)]}): the partitions in it are"
        f" offline until a start finds it. To abandon it, delete the line of {missed} from {NOTE} in the other log"
        " directories"
    ]
    assert directories.log(manager, "t").log_end_offset == 1
    with pytest.raises(StorageError, match=str(second)):
        directories.log(manager, "u")
    with pytest.raises(StorageError, match=str(second)):
        manager.delete("u", 0)  # it would be there again with its directory
    assert directories.log(manager, "new", is_new=True).directory == f"{first}/new-0"
    manager.close()
    if how == "empty":
        assert not list(second.iterdir()), "not even a lock"
        second.rmdir()
    elif how == "a file":
        second.unlink()
    directories.away.rename(second)
    manager = directories.open()
    assert not manager.missing_directories
    assert [directories.log(manager, topic).log_end_offset for topic in ("t", "u", "new")] == [1, 1, 0]
    manager.close()


def test_a_disk_that_is_mounted_a_start_late_keeps_its_name(directories, tmp_path):
    """Its folder, which that start took for a new directory, is missing from then on, until the administrator abandons
    it."""
    directories.fill()
    first, second = directories.paths
    third = tmp_path / "d2"
    second.rename(directories.away)
    directories.open(first, third).close()
    third.rename(tmp_path / "below")
    directories.away.rename(third)
    for order in ((first, third), (third, first)):
        manager = directories.open(*order)
        assert manager.missing_directories == {str(third): "another one is at its path: is a disk mounted over it?"}
        assert directories.log(manager, "u").log_end_offset == 1
        manager.close()
        own = [(path / NOTE).read_text().splitlines()[2].split() for path in (first, third)]
        assert [path for _, path in own] == [str(first), str(third)]
        assert own[0][0] != own[1][0]
    third.rename(directories.away)
    third.mkdir()
    manager = directories.open(first, third)
    assert manager.missing_directories == {str(third): "it is not there, or empty: is its disk mounted?"}
    with pytest.raises(StorageError, match=str(third)):
        directories.log(manager, "u")
    manager.close()
    third.rmdir()
    (tmp_path / "below").rename(tmp_path / "d3")
    directories.away.rename(third)
    manager = directories.open(first, third, tmp_path / "d3")
    assert not manager.missing_directories
    manager.close()


def test_a_directory_is_given_up_by_its_line(directories):
    directories.fill()
    first, second = directories.paths
    shutil.rmtree(second)
    note = first / NOTE
    note.write_text("".join(line for line in note.read_text().splitlines(keepends=True) if "/d1" not in line))
    manager = directories.open()
    assert not manager.missing_directories
    assert directories.log(manager, "u").log_end_offset == 0
    manager.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_known_directory_that_cannot_be_locked_is_missing(directories, is_known):
    if is_known:
        directories.fill()
    directories.refuse("lock", directories.paths[1], errno.EROFS)
    if not is_known:
        with pytest.raises(
            OSError, match=f"log directory {directories.paths[1]} cannot be used: Read-only file system"
        ):
            directories.open()
        return
    manager = directories.open()
    assert manager.missing_directories == {str(directories.paths[1]): "Read-only file system"}
    manager.close()
    with pytest.raises(OSError, match="cannot be used: Read-only file system"):
        directories.open(directories.paths[1])


@pytest.mark.parametrize(
    ("call", "below", "is_clean"),
    [
        ("unlink", ".kafka_cleanshutdown", True),
        ("list", "", True),
        ("sync_directory", "", False),
    ],
)
def test_a_disk_failure_at_a_start_is_of_one_directory(directories, caplog, call, below, is_clean):
    """The directory was in use before. As in Kafka, it goes offline and the others are served
    (LogManager.offlineLogDirs)."""
    directories.fill()
    second = directories.paths[1]
    if not is_clean:
        directories.open().abandon()
    directories.refuse(call, second / below, errno.EIO)
    manager = directories.open()
    assert manager.missing_directories == {str(second): "Input/output error"}
    assert [record.message for record in caplog.records if f"log directory {second} is missing" in record.message]
    assert [log.topic for log in manager.logs] == ["t"]
    log = directories.log(manager, "t")
    directories.logs.append(log, b"goes on")
    with pytest.raises(StorageError, match=str(second)):
        directories.log(manager, "u")
    directories.heal()
    manager.close()
    manager = directories.open()
    assert not manager.missing_directories
    assert [directories.log(manager, topic).log_end_offset for topic in ("t", "u")] == [2, 1]
    manager.abandon()
    for path in directories.paths:
        directories.refuse(call, path / below, errno.EIO)
        if call == "unlink":
            (path / below).write_text("")
        with pytest.raises(OSError, match=f"log directory {path} cannot be used: Input/output error"):
            directories.open(path)  # the only one


def test_a_new_path_that_is_a_file_is_refused(directories):
    directories.paths[1].write_text("")
    with pytest.raises(OSError, match=f"^log directory {directories.paths[1]} cannot be used: Not a directory\\. "):
        directories.open()


def test_a_log_that_was_moved_keeps_what_its_checkpoints_said(directories):
    """Its log start offset, that it was compacted, and that its former directory was not closed cleanly."""
    directories.fill()
    manager = directories.open()
    log = directories.log(manager, "u")
    directories.logs.append(log, b"2")
    log.increment_log_start_offset(1)
    manager.checkpoint_clean_offset(log, 1)
    manager.close()
    first, second = directories.paths
    (second / "u-0").rename(first / "u-0")
    for is_clean in (True, False):
        manager = directories.open()
        log = directories.log(manager, "u")
        assert log.directory == f"{first}/u-0"
        assert (log.log_start_offset, log.high_watermark, log.clean_offset, log.log_end_offset) == (1, 2, 1, 2)
        manager.close() if is_clean else manager.abandon()
    manager = directories.open()
    assert directories.log(manager, "u").clean_offset == 1
    manager.abandon()


def test_a_moved_log_is_recovered_after_an_unclean_stop(directories):
    """The directory that it comes from was not closed cleanly."""
    directories.fill()
    first, second = directories.paths
    (second / ".kafka_cleanshutdown").unlink()
    (second / "u-0").rename(first / "u-0")
    directories.logs.files.opened.clear()
    manager = directories.open()
    opened = {path for path in directories.logs.files.opened if path.endswith(".log")}
    assert {path.split("/")[-2] for path in opened} == {"u-0"}
    manager.close()


def test_the_same_log_in_two_directories_is_refused(directories):
    directories.fill()
    first, second = directories.paths
    shutil.copytree(second / "u-0", first / "u-0")
    with pytest.raises(DirectoryMismatch, match="hold u-0"):
        directories.open()


def test_a_directory_closes_without_waiting_for_slower_disks(directories):
    go_on, is_marked = threading.Event(), threading.Event()
    first, second = directories.paths

    def before_sync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(f"{second}/"):
            assert go_on.wait(PATIENCE_S)
        if path == f"{first}/.kafka_cleanshutdown":
            is_marked.set()

    manager = directories.open()
    for topic in ("t", "u"):
        directories.logs.append(directories.log(manager, topic, is_new=True), b"v")
    directories.logs.files.before["sync"] = before_sync
    closing = threading.Thread(target=manager.close)
    closing.start()
    try:
        assert is_marked.wait(PATIENCE_S), "the first directory waits for the second"
        assert not (second / ".kafka_cleanshutdown").exists()
    finally:
        go_on.set()
        closing.join()
    assert (second / ".kafka_cleanshutdown").exists()
