"""The parent of `barnabas serve --brokers N`: starts brokers, ends the sessions of dead ones in the store, starts them
again, and stops them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from barnabas.broker.cli.broker_plans import BrokerPlan, with_note
from barnabas.broker.cli.cluster_directory import (
    ADDRESS_KEYS,
    NOTE_FILE,
    SECRET_FILE,
    STORE_FILE,
    broker_directory,
    brokers_in,
    read_note,
)
from barnabas.broker.cli.free_ports import still_to_be_had, with_free_ports
from barnabas.broker.cli.ready import print_ready
from barnabas.broker.cli.zookeeper_process import new_server
from barnabas.broker.configuration.listeners import BROKERS_LISTENER
from barnabas.controller import znodes
from barnabas.storage.checkpoints import LOCK_FILE
from barnabas.storage.errors import DirectoryLocked
from barnabas.storage.os_files import OsFiles, holder_text

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"

RESTARTS_MAX: Final = 5
RESTARTS_PERIOD_S: Final = 60.0
"""A broker that has died more often than this within this time is not started again: the whole cluster stops."""

STOP_S_MAX: Final = 60.0
"""The time in which a broker has to stop before it is killed."""

_LOOK_INTERVAL_S: Final = 0.2
"""The interval at which a broker that is not this process's child is checked: whether it still lives, and is
registered."""

_NOTE_INTERVAL_S: Final = 1.0
"""The interval of attempts to write the note, after it could not be written."""

_UNKNOWN: Final = 0
"""The process that holds a lock, if the system does not report it."""


@dataclass(slots=True)
class RestartBudget:
    """Limits how often one broker may be started again."""

    deaths_s: list[float] = field(default_factory=list)

    def allows(self, now_s: float) -> bool:
        """Whether a broker that has died at this time may be started again."""
        self.deaths_s = [each for each in self.deaths_s if now_s - each < RESTARTS_PERIOD_S] + [now_s]
        return len(self.deaths_s) <= RESTARTS_MAX


@dataclass(slots=True, eq=False)
class Child:
    """One broker: its plan, the process that runs it (0: none), and whether that is a child of this one; whether that
    process serves (`is_ready`), and whether any has since this parent holds the store (`has_served`). `secret_digest`
    is that of the secret that the process was given."""

    plan: BrokerPlan
    asked: dict[str, str]
    pid: int = 0
    is_own: bool = True
    secret_digest: str = ""
    addresses: str = ""
    is_ready: bool = False
    has_served: bool = False
    output: bytes = b""
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    budget: RestartBudget = field(default_factory=RestartBudget)


class Supervisor:
    """Runs on `loop`, which the forking caller runs: `next_start` returns the broker to fork, `started` is called
    afterwards.

    `directory` has the store's file and the note. `status` is the exit status. `on_ready` is called once, after the
    ready line, with the brokers' addresses ("NAME://HOST:PORT,...") and their plans, which have the ports.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        plans: Sequence[BrokerPlan],
        on_ready: Callable[[str, Sequence[BrokerPlan]], None] = lambda _addresses, _plans: None,
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._on_ready = on_ready
        self._children = [Child(plan, dict(plan.configs)) for plan in plans]
        self._to_start: asyncio.Queue[Child | None] = asyncio.Queue()
        self._is_stopping = False
        self._has_store = True
        self._is_ready = False
        self._secret_digest = ""
        self._late_note: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.status = 0

    # -- called by the forking caller

    async def open(self) -> None:
        """Open the store, and find brokers that have survived a former parent. Raises: StoreUnavailable, OSError."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._stop, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, self._look_at_children)
        self._server = new_server(str(self._directory / STORE_FILE), self._store_failed)
        self._server.open()
        note = self._former_note()
        self._require_no_others(note)
        plans = with_note([child.plan for child in self._children], note)
        with contextlib.ExitStack() as taken:
            for child, plan in zip(self._children, plans, strict=True):
                is_in_use = _is_in_use(plan)
                port = await self._listen(plan.store_port, is_needed=is_in_use)
                noted = _addresses(plan.configs)
                if not is_in_use:
                    noted = {key: still_to_be_had(child.asked[key], each, taken) for key, each in noted.items()}
                addresses = {key: with_free_ports(each, taken) for key, each in noted.items()}
                configs = {**plan.configs, **addresses, "zookeeper.connect": f"{HOST}:{port}"}
                child.plan = replace(plan, configs=configs, store_port=port)
        for child in self._children:
            if _is_in_use(child.plan):
                self._adopt(child)
            else:
                self._to_start.put_nowait(child)
        self._write_note()
        logger.info(
            "pid %d holds the metadata store of %d brokers, %s", os.getpid(), len(plans), self._directory / STORE_FILE
        )

    def agree_on_secret(self, digest: str) -> None:
        """Set the digest of the secret with which brokers are started. A broker that has survived a former parent with
        another secret is started again: it could not authenticate to the others, nor they to it."""
        self._secret_digest = digest
        for child in self._children:
            if child.pid and child.secret_digest != digest:
                logger.warning(
                    "broker %d has another secret than %s, which was lost, readable by others or replaced: it is"
                    " started again",
                    child.plan.node_id,
                    self._directory / SECRET_FILE,
                )
                self._spawn(self._end(child))

    async def next_start(self) -> BrokerPlan | None:
        """The next broker to fork, as soon as there is one; None when all is over."""
        while (child := await self._to_start.get()) is not None:
            if not self._is_stopping:
                return child.plan
        return None

    def started(self, plan: BrokerPlan, pid: int, output: int) -> None:
        """A broker runs as process `pid`, and prints to `output`."""
        child = next(child for child in self._children if child.plan is plan)
        child.pid, child.is_own, child.output = pid, True, b""
        child.secret_digest = self._secret_digest
        child.has_ended = asyncio.Event()
        self._loop.add_reader(output, self._read, child, output)
        self._renew_note()
        self._look_at_children()  # it may have ended before its process id was known

    def could_not_start(self, plan: BrokerPlan, reason: str) -> None:
        """No process is available for a broker."""
        logger.critical("broker %d could not start (%s): all brokers are stopped", plan.node_id, reason)
        self._stop(1)

    def close(self) -> None:
        """Close the store."""
        self._server.close()

    # -- brokers that start and end

    async def _listen(self, port: int, *, is_needed: bool) -> int:
        """Listen on a port of the store, the former one if there was one. Raises: OSError."""
        try:
            return await self._server.listen(HOST, port)
        except OSError as error:
            if not port or is_needed:
                raise OSError(error.errno, f"cannot listen on {HOST}:{port}: {error.strerror}") from error
            return await self._server.listen(HOST, 0)

    def _require_no_others(self, note: Mapping[str, Any]) -> None:
        """Raises: OSError, if a process other than the noted one uses a broker's directory, or a broker of a former
        parent still runs that is not among those to start."""
        asked = {child.plan.node_id for child in self._children}
        for node_id in sorted({*asked, *map(int, note), *brokers_in(str(self._directory))}):
            directory = Path(broker_directory(str(self._directory), node_id))
            if (user := _user(directory)) is None:
                continue
            pid = note.get(str(node_id), {}).get("pid", 0)
            if not pid or user not in (pid, _UNKNOWN):
                raise OSError(
                    f"{holder_text(user)} uses {directory}, and {self._directory / NOTE_FILE} does not list it: "
                    "stop it, then start again"
                )
            if node_id not in asked:
                raise OSError(
                    f"broker {node_id} of the last run, pid {pid}, still runs: stop it, or start as many as before"
                )

    def _adopt(self, child: Child) -> None:
        """A broker of a former parent still runs: it finds the store at its former port."""
        child.pid, child.is_own = child.plan.former_pid, False
        child.secret_digest = child.plan.former_secret_digest
        logger.info("broker %d still runs, pid %d: it goes on", child.plan.node_id, child.pid)
        self._spawn(self._watch(child))

    async def _watch(self, child: Child) -> None:
        """Watch a process that is not a child of this one: its registration, and its end."""
        while _may_be_in_use(child.plan):
            if not child.is_ready and (addresses := self._registered_addresses(child)):
                self._child_is_ready(child, addresses)
            await asyncio.sleep(_LOOK_INTERVAL_S)
        self._ended(child, "has ended")

    def _registered_addresses(self, child: Child) -> str:
        """The registered addresses of a broker; empty while there are none."""
        payload = self._server.znode(znodes.broker_path(child.plan.node_id))
        if payload is None:
            return ""
        try:
            broker = znodes.decode_broker(child.plan.node_id, payload, -1)
        except znodes.DamagedZnode:
            return ""  # it is about to write it again
        return ",".join(endpoint.connection_string for endpoint in broker.endpoints)

    def _read(self, child: Child, output: int) -> None:
        data = os.read(output, 4096)
        child.output += data
        line, newline, _ = child.output.partition(b"\n")
        if newline and not child.is_ready:
            self._child_is_ready(child, line.decode().split()[1])
        if not data:
            self._loop.remove_reader(output)
            os.close(output)

    def _child_is_ready(self, child: Child, addresses: str) -> None:
        child.is_ready = child.has_served = True
        of_brokers = f"{BROKERS_LISTENER}://"
        child.addresses = ",".join(each for each in addresses.split(",") if not each.startswith(of_brokers))
        if not (self._is_ready or self._is_stopping) and all(each.is_ready for each in self._children):
            self._is_ready = True
            print_ready(self._ready_line())
            self._on_ready(self._addresses, [child.plan for child in self._children])

    @property
    def _addresses(self) -> str:
        return ",".join(child.addresses for child in self._children)

    def _ready_line(self) -> str:
        ids = ",".join(str(child.plan.node_id) for child in self._children)
        payload = self._server.znode(znodes.CLUSTER_ID)
        cluster_id = "" if payload is None else znodes.decode_cluster_id(payload)
        return f"ready: {self._addresses} node.id={ids} cluster.id={cluster_id}"

    def _look_at_children(self) -> None:
        """Find the children that have ended, on SIGCHLD."""
        for child in self._children:
            if not (child.pid and child.is_own):
                continue
            pid, wait_status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(wait_status)
                self._ended(child, _cause(status), gave_up=status > 0)

    def _ended(self, child: Child, cause: str, *, gave_up: bool = False) -> None:
        """A broker's process has ended: its session ends, so that other replicas lead its partitions at once."""
        node_id, pid, child.pid = child.plan.node_id, child.pid, 0
        child.is_ready = False
        child.has_ended.set()
        self._server.end_sessions(child.plan.store_port)
        if self._is_stopping:
            return
        if gave_up and not child.has_served:
            logger.critical("broker %d could not start (pid %d %s): all brokers are stopped", node_id, pid, cause)
            self._stop(1)
        elif not child.budget.allows(time.monotonic()):
            logger.critical(
                "broker %d has died %d times within a minute (pid %d %s): all brokers are stopped",
                node_id, RESTARTS_MAX + 1, pid, cause,
            )  # fmt: skip
            self._stop(1)
        else:
            logger.error("broker %d, pid %d, %s: it is started again", node_id, pid, cause)
            self._to_start.put_nowait(child)

    # -- the end

    def _store_failed(self, reason: str) -> None:
        logger.critical("the metadata store failed (%s): all brokers are stopped", reason)
        self._has_store = False
        self._stop(1)

    def _stop(self, status: int) -> None:
        """Stop all brokers, once."""
        self.status = max(self.status, status)
        if not self._is_stopping:
            self._is_stopping = True
            self._spawn(self._stop_all())

    async def _stop_all(self) -> None:
        """Stop brokers one after the other, the controller last, so that each can transfer its partitions to others;
        all at once if the store has failed, when no transfer is possible."""
        logger.info("stopping %d brokers", sum(child.pid != 0 for child in self._children))
        controller_id = self._controller_id()
        for child in sorted(self._children, key=lambda child: child.plan.node_id == controller_id):
            if not self._has_store:
                break
            await self._end(child)
        await asyncio.gather(*map(self._end, self._children))
        self._to_start.put_nowait(None)

    def _controller_id(self) -> int | None:
        payload = self._server.znode(znodes.CONTROLLER)
        with contextlib.suppress(znodes.DamagedZnode):
            return None if payload is None else znodes.decode_controller(payload)
        return None

    async def _end(self, child: Child) -> None:
        if not child.pid:
            return
        _send(child.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(child.has_ended.wait(), STOP_S_MAX)
        except TimeoutError:
            logger.error("broker %d does not stop: it is killed", child.plan.node_id)
            self.status = 1
            _send(child.pid, signal.SIGKILL)
            await child.has_ended.wait()

    # -- bookkeeping

    def _former_note(self) -> Mapping[str, Any]:
        path = self._directory / NOTE_FILE
        try:
            return read_note(path)
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read; stop the brokers of the last run that still run: %s", path, error)
            return {}

    def _renew_note(self) -> None:
        """Write the note while brokers run. They go on without one, and it is written as soon as possible."""
        path = self._directory / NOTE_FILE
        late, self._late_note = self._late_note, None
        if late is not None:
            late.cancel()
        try:
            self._write_note()
        except OSError as error:
            self._late_note = self._loop.call_later(_NOTE_INTERVAL_S, self._renew_note)
            if late is None:
                logger.error(
                    "%s cannot be written (%s): if this process is killed, stop its brokers before the next start",
                    path, error.strerror,
                )  # fmt: skip
        else:
            if late is not None:
                logger.info("%s is written again", path)

    def _write_note(self) -> None:
        note = {
            str(child.plan.node_id): {
                "pid": child.pid,
                "store_port": child.plan.store_port,
                "secret_digest": child.secret_digest,
                "asked": _addresses(child.asked),
                "given": _addresses(child.plan.configs),
            }
            for child in self._children
        }
        path = self._directory / NOTE_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(note, indent=1) + "\n")
        os.replace(temporary, path)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process. A process of a former parent may be gone, which is noticed a little later."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _cause(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _is_in_use(plan: BrokerPlan) -> bool:
    """Whether the process that a former parent noted still has the broker's directory."""
    return plan.former_pid != 0 and _user(Path(plan.directories[0])) in (plan.former_pid, _UNKNOWN)


def _may_be_in_use(plan: BrokerPlan) -> bool:
    """The same, and true as long as it is unknown: it may be impossible to open the lock for a while (no descriptor is
    left)."""
    try:
        return _is_in_use(plan)
    except OSError:
        return True


def _user(directory: Path) -> int | None:
    """The process that uses a log directory, `_UNKNOWN` if the system does not report it; None if none does."""
    lock = directory / LOCK_FILE
    if not lock.exists():
        return None
    files = OsFiles()
    try:
        files.close(files.lock(str(lock)))
    except DirectoryLocked as locked:
        return locked.pid
    return None


def _addresses(configs: Mapping[str, str]) -> dict[str, str]:
    return {key: configs[key] for key in ADDRESS_KEYS if key in configs}
