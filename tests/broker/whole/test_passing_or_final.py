"""The outcome of each refusal of the operating system, at each activity of a broker: it passes, or it is final.

Each activity is run once, and the calls of `Files` that it makes are written down; then the first, the one in the
middle and the last of them is refused, with each of six errors. `promise` says what has to come of it. Whatever came,
the broker is well when the cause is gone (where it is final, after a start that follows a crash), and nothing that was
acknowledged is lost.
"""

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from barnabas.clock import ManualClock
from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE
from barnabas.storage.log import PartitionLog
from barnabas.testing import ApiError, Broker
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for `tools`, which no wheel contains

from tests.support import refused_store  # noqa: E402
from tests.support.event_loops import has_uvloop  # noqa: E402
from tests.support.files import Call, RefusingFiles  # noqa: E402
from tests.support.required import tool_missing  # noqa: E402
from tools.processes.barnabas import BarnabasProcess  # noqa: E402
from tools.waiting import PATIENCE_S, wait_until  # noqa: E402

PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
ERRORS: Final = (*PASSING, errno.EIO, errno.EACCES)


class Promise(Enum):
    """The outcome of a refusal."""

    PASSES = "the same works a moment later"
    FINAL = "the broker goes down, without a word that it was done"
    HARMLESS = "nothing depends on it: whatever the error, the broker goes on"
    REFUSED = "one request is refused, whatever the error, and the broker goes on"
    NO_START = "the start is refused, the next one works"


class Bench:
    """A broker on a disk that refuses, whose time stands still; and what it acknowledged."""

    def __init__(self, data_dir: Path) -> None:
        self.files = RefusingFiles()
        self.broker = Broker(
            data_dir=data_dir,
            clock=ManualClock(now_ms=1_700_000_000_000),
            files=self.files,
            configs={"barnabas.disk.reserve.bytes": "0", "log.cleaner.backoff.ms": "1000"},
        )
        self.acknowledged: list[bytes] = []
        self.failures: list[str] = []
        self.number = 0
        self.is_compacted = False
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> "Bench":
        self.broker.start()
        self._listen()
        self.broker.create_topic("t")
        return self

    def __exit__(self, *_error: object) -> None:
        self.files.heal()
        self.broker.stop()
        self._pool.shutdown()

    def _listen(self) -> None:
        self.failures.clear()
        self.broker.server._on_failure = self.failures.append

    @property
    def log(self) -> PartitionLog:
        log = self.broker.server.log_manager.get("t", 0)
        assert log is not None
        return log

    def on_loop(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            found = work()
            return await found if hasattr(found, "__await__") else found

        return self.broker.call(call())

    def configure(self, **settings: Any) -> None:
        self.on_loop(lambda: self.log.update_config(dataclasses.replace(self.log.config, **settings)))

    def produce(self) -> None:
        """One record; raises ApiError."""
        self.number += 1
        value = b"%050d" % self.number
        key = b"%d" % (self.number % 2)
        self.broker.topic("t").produce(value, key=key)
        self.acknowledged.append(value)

    def patiently(self, work: Callable[[], Any]) -> Any:
        """The result of a client's call, while the broker's time goes on once the disk has refused something: until
        then nothing waits for it, and jobs that are due would make calls of their own."""
        future: Future[Any] = self._pool.submit(work)
        patience_s = 0.02
        while True:
            try:
                return future.result(patience_s)
            except TimeoutError:
                if self.files.refused_call is not None:
                    # A broker that has failed gives no answer: the client waits for as long as the toolkit's limit.
                    self.broker.clock.advance(60_000 if self.failures else 1_000)
                    patience_s = 0.1

    def restart_after_crash(self) -> None:
        self.broker.kill()
        self.broker.start()
        self._listen()

    def restart(self) -> None:
        self.broker.restart()
        self._listen()

    def check(self) -> None:
        """Everything acknowledged is read, where compaction and retention leave it."""
        found = [record.value for record in self.broker.topic("t").records()]
        first = self.log.log_start_offset
        if self.is_compacted:
            assert set(self.acknowledged[-2:]) <= set(found)
        elif first == 0:
            positions = [found.index(value) for value in self.acknowledged]
            assert positions == sorted(positions)


class Activity(NamedTuple):
    """`prepare` makes it due each time, `act` does it and tells what its client is told (None where there is none);
    of the calls meanwhile those count that `concern` it."""

    name: str
    prepare: Callable[[Bench], None]
    act: Callable[[Bench], None]
    concerns: Callable[[Call], bool] = lambda call: "/t-0" in call.path
    exceptions: tuple[tuple[Callable[[Call], bool], Promise], ...] = ()
    """Other promises, for some calls."""
    is_fresh: bool = False
    """A second time other calls are made: each cell has a broker of its own."""
    refusals: int = 3
    """Of how many calls: an activity of one call or two has no first, middle and last one that differ."""


def promise(activity: Activity, call: Call, number: int) -> Promise:
    """The rule, and where it does not hold."""
    for concerned, instead in activity.exceptions:
        if concerned(call):
            return instead
    if call.name == "sync" or (call.name == "sync_directory" and number not in (errno.EMFILE, errno.ENFILE)):
        return Promise.FINAL  # a failed sync is final whatever the reason
    return Promise.PASSES if number in PASSING else Promise.FINAL


def nothing(_: Bench) -> None:
    pass


def rolling(bench: Bench) -> None:
    bench.configure(segment_bytes=200)
    bench.produce()


def aged(bench: Bench) -> None:
    bench.produce()
    bench.configure(retention_ms=1000)
    bench.broker.clock.advance(2000)


def aged_and_restarted(bench: Bench) -> None:
    aged(bench)
    bench.restart()
    bench.configure(retention_ms=1000)


def retain(bench: Bench) -> None:
    bench.on_loop(bench.broker.server.retention.run)


def dirty(bench: Bench) -> None:
    bench.configure(segment_bytes=200, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    bench.is_compacted = True
    for _ in range(4):
        bench.produce()
    flush(bench)


def flush(bench: Bench) -> None:
    """Flush the logs that are due; returns when that is done."""
    replicas = bench.broker.server.replicas

    async def run() -> None:
        replicas.flusher.flush_due()
        await asyncio.gather(*replicas.flusher.under_way(), return_exceptions=True)

    bench.broker.call(run())


def run_compaction(bench: Bench) -> None:
    bench.on_loop(bench.broker.server.compaction.run)


def create_topic(bench: Bench) -> None:
    bench.number += 1
    name = f"new-{bench.number}"
    bench.patiently(lambda: bench.broker.create_topic(name))
    bench.broker.topic(name).produce(b"v")


def make_doomed_topic(bench: Bench) -> None:
    if "doomed" not in bench.broker.topic_names():
        bench.broker.create_topic("doomed")
    bench.broker.topic("doomed").produce(b"v")


def delete_topic(bench: Bench) -> None:
    """As a client does, which asks again for what may work later, and then finds that it is gone."""
    try:
        bench.patiently(lambda: bench.broker.delete_topic("doomed"))
    except ApiError as error:
        if error.error is not ErrorCode.KAFKA_STORAGE_ERROR or bench.failures:
            raise
        assert "doomed" not in bench.broker.topic_names()
        bench.broker.clock.advance(1_000)


def make_doomed_files(bench: Bench) -> None:
    rolling(bench)
    bench.produce()
    bench.configure(segment_bytes=200, file_delete_delay_ms=0)
    bench.on_loop(lambda: bench.log.increment_log_start_offset(bench.log.log_end_offset))
    bench.on_loop(bench.broker.server.retention.run)


def remove_files(bench: Bench) -> None:
    bench.broker.server.log_manager.delete_due_files()


def newly_led(bench: Bench) -> None:
    """The leader epochs and the name of their file are to be brought to the disk, too."""
    bench.configure(flush_messages=1)
    epochs = bench.log.leader_epochs
    epochs.assign(epochs.latest_epoch, bench.log.log_end_offset)
    epochs.dirty = True


def to_flush(bench: Bench) -> None:
    rolling(bench)
    bench.produce()


def write_checkpoints(bench: Bench) -> None:
    bench.broker.server.log_manager.checkpoint(HIGH_WATERMARK_FILE)
    bench.broker.server.log_manager.checkpoint(RECOVERY_POINT_FILE)


def sealed_and_restarted(bench: Bench) -> None:
    rolling(bench)
    bench.produce()
    bench.restart()


def without_indexes(bench: Bench) -> None:
    sealed_and_restarted(bench)
    for path in bench.broker.data_dir.glob("t-0/*.*index"):
        path.unlink()


def look_up_timestamp(bench: Bench) -> None:
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=1)])]
    )
    response = bench.broker.call(ask(bench.broker.server, request, 5))
    error = ErrorCode.of(response.topics[0].partitions[0].error_code)
    if error is not ErrorCode.NONE:
        raise ApiError(error)


def start(bench: Bench) -> None:
    bench.broker.start()
    bench._listen()


def is_swapping(call: Call) -> bool:
    return "/t-0" in call.path and call.name in ("rename", "sync_directory")


def is_cleaning(call: Call) -> bool:
    return "/t-0" in call.path and not is_swapping(call) and call.name != "unlink"


def is_reading(call: Call) -> bool:
    return ("/t-0" in call.path and call.name in ("pread", "stat")) or call.path.endswith(".timeindex")


def is_creating(call: Call) -> bool:
    return "/new-" in call.path and call.name in ("make_directory", "open", "pwrite", "rename")


class IsDeleting:
    """The renaming, and the sync after it. The checkpoints that forget the log are an activity of their own."""

    def __init__(self) -> None:
        self._is_renamed = False

    def __call__(self, call: Call) -> bool:
        was_renamed, self._is_renamed = self._is_renamed, call.path.endswith("/doomed-0")
        return self._is_renamed or (was_renamed and call.name == "sync_directory")


def is_flushing(call: Call) -> bool:
    return "/t-0" in call.path and not (call.name == "pwrite" and call.path.endswith(".log"))


EVERYTHING: Final[Callable[[Call], bool]] = lambda call: True  # noqa: E731
HARMLESS: Final = ((EVERYTHING, Promise.HARMLESS),)
HALF_SWAPPED: Final = ((lambda call: call.path.endswith(".swap"), Promise.FINAL),)
"""Old segments are gone by their names: the next start finishes it."""

ACTIVITIES: Final = (
    Activity("append", nothing, Bench.produce, refusals=1),
    Activity("roll", rolling, Bench.produce),
    Activity("snapshot", rolling, Bench.produce, lambda call: call.path.endswith(".snapshot"), refusals=2),
    Activity("retention", aged, retain),
    Activity("retention after a start", aged_and_restarted, retain, is_reading),
    Activity("removal of deleted files", make_doomed_files, remove_files, exceptions=HARMLESS),
    Activity("flush before the acknowledgement", newly_led, Bench.produce, is_flushing, is_fresh=True),
    Activity("flush", to_flush, flush, is_fresh=True),
    Activity("checkpoint", Bench.produce, write_checkpoints, lambda call: "/t-0" not in call.path),
    Activity("compaction", dirty, run_compaction, is_cleaning, HARMLESS, is_fresh=True),
    Activity("swap", dirty, run_compaction, is_swapping, HALF_SWAPPED, is_fresh=True),
    Activity("create", nothing, create_topic, is_creating, is_fresh=True),
    Activity("delete", make_doomed_topic, delete_topic, IsDeleting(), is_fresh=True, refusals=2),
    Activity("index", sealed_and_restarted, Bench.produce, lambda call: "index" in call.path),
    Activity("index that is missing", without_indexes, Bench.produce),
    Activity("first append", sealed_and_restarted, Bench.produce),
    Activity("search by time", sealed_and_restarted, look_up_timestamp, exceptions=((EVERYTHING, Promise.REFUSED),)),
    Activity("lock", lambda bench: bench.broker.kill(), start, lambda call: call.name == "lock",
             ((EVERYTHING, Promise.NO_START),), refusals=1),
)  # fmt: skip


def told(bench: Bench, activity: Activity) -> str:
    """The error with which the activity ended."""
    try:
        activity.act(bench)
    except ApiError as error:
        return error.error.name
    except OSError as error:
        return str(error)
    return "NONE"


def run_cell(bench: Bench, activity: Activity, number: int, error: int) -> str:
    """One refusal, and what came of it; then everything has to be well again. Returns what was wrong, if it was."""
    activity.prepare(bench)
    bench.files.watch(activity.concerns, refuse=number, error=error)
    outcome = told(bench, activity)
    refused = bench.files.refused_call
    bench.files.heal()
    if activity.act is not start:
        bench.on_loop(lambda: None)  # where a failure is told
    if refused is None:
        return "nothing was refused"
    promised = promise(activity, refused, error)
    has_failed = bool(bench.failures)
    is_right = {
        Promise.PASSES: not has_failed and outcome in ("NONE", "KAFKA_STORAGE_ERROR"),
        Promise.FINAL: has_failed
        and outcome in (("KAFKA_STORAGE_ERROR", "REQUEST_TIMED_OUT") if activity.act in ANSWERED else ("NONE",)),
        Promise.HARMLESS: not has_failed and outcome == "NONE",
        Promise.REFUSED: not has_failed and outcome in ("NONE", "KAFKA_STORAGE_ERROR"),
        Promise.NO_START: os.strerror(error) in outcome,
    }[promised]
    problem = "" if is_right else f"{refused}: {promised.name}, but {outcome}, failures {bench.failures}"
    if promised is Promise.NO_START:
        activity.act(bench)
    elif has_failed:
        bench.restart_after_crash()
    bench.broker.clock.advance(120_000)  # whatever was put off is tried again
    try:
        bench.produce()
        bench.check()
        activity.prepare(bench)
        again = told(bench, activity)
        bench.check()
        if again != "NONE" or bench.failures:
            problem += f"; {refused}: not well again: {again} {bench.failures}"
    except Exception as unforeseen:  # noqa: BLE001 - all cells of an activity are told together
        problem += f"; {refused}: not well again: {unforeseen!r}"
    return problem


ANSWERED: Final = (Bench.produce, create_topic, delete_topic)
"""A client waits for these."""


def record(bench: Bench, activity: Activity) -> list[Call]:
    """The calls that an activity makes."""
    activity.prepare(bench)
    bench.files.watch(activity.concerns)
    assert told(bench, activity) == "NONE"
    bench.files.heal()
    return bench.files.calls


@pytest.mark.slow
@pytest.mark.parametrize("activity", ACTIVITIES, ids=lambda activity: activity.name)
def test_each_refusal_passes_or_is_final(activity: Activity, tmp_path: Path) -> None:
    problems: list[str] = []
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(Bench(tmp_path / "recorded"))
        calls = record(bench, activity)
        positions = sorted({0, len(calls) // 2, len(calls) - 1})
        assert len(positions) == activity.refusals, calls
        for position, error in itertools.product(positions, ERRORS):
            if activity.is_fresh:
                stack.close()
                bench = stack.enter_context(Bench(tmp_path / f"{position}-{error}"))
            problem = run_cell(bench, activity, position, error)
            if problem:
                problems.append(f"{errno.errorcode[error]} at call {position}: {problem}")
    told_calls = [f"{position} {calls[position].name} {Path(calls[position].path).name}" for position in positions]
    print(f"{activity.name}: {len(positions) * len(ERRORS)} cells; of {len(calls)} calls {', '.join(told_calls)}")
    assert not problems, "\n".join(problems)


def answers(port: int, request: bytes) -> bool:
    """Whether a new connection is served."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return bool(connection.recv(100))
    return False


HEALTHZ: Final = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
API_VERSIONS: Final = bytes.fromhex("0000000a00120000000000010000")
"""Version 0 of the request, of a client without a name."""


PORTS: Final = ("accept", "HTTP")
CONNECTIONS, REFUSED = 5, (0, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("what", PORTS)
def test_a_failed_accept_costs_one_connection_only(what: str, tmp_path: Path) -> None:
    """The first, the middle and the last of five, each error: nothing on a disk is concerned, so each of them passes.
    libuv makes these calls; strace has the kernel refuse them.
    """
    strace = shutil.which("strace")
    if strace is None:
        tool_missing("strace is not installed (apt-get install strace)")
    with socket.create_server(("127.0.0.1", 0)) as found:
        http_port = found.getsockname()[1]
    with BarnabasProcess({"barnabas.http.address": f"127.0.0.1:{http_port}"}) as process:
        port, request = http_port, HEALTHZ
        if what == "accept":
            port, request = int(process.bootstrap_servers.rpartition(":")[2]), API_VERSIONS
        for error in ERRORS:
            name = errno.errorcode[error]
            log = tmp_path / name
            injection = f"inject=accept,accept4:error={name}:when=1+2"
            command = [strace, "-f", "-p", str(process.pid), "-e", "trace=accept,accept4", "-e", injection, "-o", log]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
                assert tracer.stderr is not None
                if "attached" not in tracer.stderr.readline():
                    tracer.kill()
                    tool_missing("strace may not attach to a process here")
                served = [answers(port, request) for _ in range(CONNECTIONS)]
                tracer.terminate()
            assert log.read_text().count("(INJECTED)") >= len(REFUSED), name
            assert all(served[index] for index in {*range(CONNECTIONS)}.difference(REFUSED)), name
            assert all(served) or error in (errno.EMFILE, errno.ENFILE), name
            # After EMFILE, libuv closes whatever waits in the backlog at the next turn of the loop.
            wait_until(lambda: all(answers(port, request) for _ in range(3)), f"{name}: not well again")
            print(f"{what}, {name}: served {served}")
        if has_uvloop():  # asyncio logs those of errors that accept() never has
            assert "Traceback" not in process.log_text()
        process.stop()
    print(f"{what}: {len(REFUSED) * len(ERRORS)} cells")


def test_the_page_tells_how_many_cells_there_are() -> None:
    """Each activity's number of calls is looked at where it is refused."""
    refusals = sum(activity.refusals for activity in ACTIVITIES) + len(PORTS) * len(REFUSED)
    cells = (refusals + sum(refused_store.REFUSALS.values())) * len(ERRORS)
    assert refused_store.ERRORS == ERRORS
    page = (ROOT / "docs/internals/durability-tests.md").read_text()
    assert re.findall(r"strace\)\.\s([\d,]+)\scells", page) == [f"{cells:,}"]
