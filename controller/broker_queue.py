"""The queue of the controller's commands for one broker: sent in order, and retried until they arrive.

*Source*: kafka 3.9.1 `ControllerChannelManager.scala` (`RequestSendThread`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from barnabas.controller.channel import BrokerChannel, Command
from barnabas.controller.coordination.interface import ConnectionLost, CoordinationError, SessionExpired
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, pause

logger = logging.getLogger(__name__)

RETRY_DELAY_MS = 100
"""The delay before a failed command is sent again (`RequestSendThread.backoff`)."""


FAILURES_TOLD = 3
"""The number of failures after which a command is logged: a broker that stops is unreachable for a moment before its
registration is gone.
"""


ENTRIES_MAX = 1_000
"""Pending commands are merged when they have this many partitions, plus twice those that the last merge left."""


class Answer(NamedTuple):
    """A broker's response to a command."""

    broker_id: int
    command: Command
    response: Any


Told = Callable[[], None]
"""Called when all commands posted before have a response, or will not get one."""


class BrokerQueue:
    """The commands that one broker has not responded to yet, and the task that sends them, one after the other.

    It belongs to one registration of the broker: after another registration the broker gets a new queue, without the
    pending commands of this one. `answered` is called with each response. The pending commands of a broker that does
    not respond are merged now and then, so that their size is bounded by the number of partitions. The broker is in
    `set_aside` while a command, or the processing of a response, raises an unexpected error; `unsendable` contains the
    broker with the subjects that no message can carry.
    """

    def __init__(
        self,
        broker_id: int,
        channel: BrokerChannel,
        timers: Timers,
        answered: Callable[[Answer], None],
        set_aside: SetAside[int],
        unsendable: SetAside[tuple[int, str]],
    ) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._timers = timers
        self._answered = answered
        self._set_aside = set_aside
        self._unsendable = unsendable
        self._waiting: deque[Command | Told] = deque()
        """Commands, and callbacks for when all commands before them have a response."""
        self._entries = 0
        self._entries_max = ENTRIES_MAX
        self._is_wanted = asyncio.Event()
        self._failures = 0
        """The number of consecutive failures of the current command."""
        self._failure: Exception | None = None
        """The error of the current command, if it is not transient."""
        self._gives_up = False
        self._waiters: list[asyncio.Future[None]] = []
        """The waiters of `answered`."""
        self._task = asyncio.create_task(self._run(), name=f"controller to broker {broker_id}")

    def post(self, command: Command) -> None:
        """Queue a command, to be sent after all before it have a response; never waits."""
        self._waiting.append(command)
        self._entries += entries(command)
        if self._entries > self._entries_max and len(self._waiting) > 1:
            self._merge()
        self._is_wanted.set()

    def when_answered(self, call: Told) -> None:
        """Call when all commands posted before have a response, or the queue is closed."""
        self._waiting.append(call)
        self._is_wanted.set()

    async def answered(self) -> None:
        """Wait until all commands posted so far have a response, or the queue is closed.

        Raises: a non-transient error of a delivery meanwhile (which is retried nevertheless).
        """
        if self._failure is not None:
            raise self._failure
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.when_answered(lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    async def finish(self) -> None:
        """Send the pending commands, each once, and return when the last has a response, or one has failed."""
        self._gives_up = True
        if self._failures > 0:
            return
        ended = asyncio.Event()
        self.when_answered(ended.set)
        answered = asyncio.create_task(ended.wait())
        await asyncio.wait([self._task, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()

    def _merge(self) -> None:
        """Merge the pending commands; callbacks among them are called a little later than possible."""
        from barnabas.controller.command_merging import merged

        calls = [found for found in self._waiting if callable(found)]
        commands = merged([found for found in self._waiting if not callable(found)])
        self._waiting = deque([*commands, *calls])
        self._entries = sum(map(entries, commands))
        self._entries_max = ENTRIES_MAX + 2 * self._entries

    @property
    def is_closed(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    def close(self) -> None:
        """Send nothing more; a command that is being sent may still arrive. Calls the pending callbacks."""
        self._task.cancel()
        for found in self._waiting:
            if callable(found):
                with self._set_aside.attempt(self._broker_id):
                    found()

    async def closed(self) -> None:
        """Wait until the task has ended; to be called after `close`."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            command = await self._next()
            answer = None if callable(command) else await self._deliver(command)
            with self._set_aside.attempt(self._broker_id):
                if callable(command):
                    command()
                elif answer is not None:
                    self._answered(answer)

    async def _next(self) -> Command | Told:
        """Remove and return the first pending item."""
        while not self._waiting:
            self._is_wanted.clear()
            await self._is_wanted.wait()
        found = self._waiting.popleft()
        if not callable(found):
            self._entries -= entries(found)
        return found

    async def _deliver(self, command: Command) -> Answer | None:
        """Send a command until there is a response. Subjects that no message can carry are left out, as they would
        block the queue; returns None if nothing is left.
        """
        self._failures = 0
        while True:
            try:
                response = await self._channel.send(self._broker_id, command)
            except Exception as error:
                self._failures += 1
                if isinstance(error, ValueError):
                    rest = self._without_unsendable(command, error)
                    if rest is None:
                        return None
                    if rest is not command:
                        command = rest
                        continue
                if self._gives_up:
                    logger.warning("broker %d did not receive the last requests: %s", self._broker_id, error)
                    raise asyncio.CancelledError from error
                self._tell_of_failure(error)
                await pause(self._timers, RETRY_DELAY_MS)
            else:
                self._is_delivered(command)
                return Answer(self._broker_id, command, response)

    def _tell_of_failure(self, error: Exception) -> None:
        """Handle a failed delivery: it affects only this broker."""
        if not isinstance(error, OSError | ConnectionLost | SessionExpired):
            self._failure = error
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        if not isinstance(error, OSError | CoordinationError):
            self._set_aside.put(self._broker_id, error)
        elif self._failures == FAILURES_TOLD:
            logger.warning("broker %d does not receive requests, retrying: %s", self._broker_id, error)

    def _is_delivered(self, command: Command) -> None:
        if self._failures >= FAILURES_TOLD:
            logger.info("broker %d receives requests again", self._broker_id)
        self._failures, self._failure = 0, None
        if self._unsendable:
            from barnabas.controller.unsendable import subjects

            for subject in subjects(command):
                self._unsendable.release((self._broker_id, subject))

    def _without_unsendable(self, command: Command, error: ValueError) -> Command | None:
        """The command without subjects that no message can carry; the command itself if the `error` has another cause
        (returned unchanged).
        """
        from barnabas.controller.unsendable import sendable

        rest, left_out = sendable(command)
        if rest is not None and not left_out:
            return command
        for subject in left_out or ["the whole"]:
            self._unsendable.put((self._broker_id, subject), error, reason=str(error))
        return rest


def entries(command: Command) -> int:
    """The weight of a command in a broker's queue: the number of its partitions plus one."""
    return 1 + sum(len(topic.partition_states) for topic in command.topic_states)
