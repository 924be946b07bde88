"""The controller's commands on their way to one broker: in order, and again until they arrive.

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
"""How long after a failure a command is sent again (`RequestSendThread.backoff`)."""


FAILURES_TOLD = 3
"""A command that fails so often is told in the log: a broker that stops is out of reach for a moment before its
registration has gone, too."""


ENTRIES_MAX = 1_000
"""Commands that wait are merged when they have this many partitions, and twice those that the last merge left."""


class Answer(NamedTuple):
    """What a broker has answered to a command."""

    broker_id: int
    command: Command
    response: Any


Told = Callable[[], None]
"""Called when all that was posted before has been answered, or will not be."""


class BrokerQueue:
    """The commands that one broker has not answered yet, and the task that sends them, one after the other.

    It belongs to one life of the broker: a broker that is registered anew gets another queue, and knows nothing of what
    waited in this one. `answered` is called with each answer. What waits for a broker that is silent is put together
    now and then, so that it takes no more than the partitions that there are. In `set_aside` it is while a command, or
    what follows an answer, raises what nobody foresaw; in `unsendable` are the broker and what it cannot be told of.
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
        """Commands, and what is to be called when all before it have been answered."""
        self._entries = 0
        self._entries_max = ENTRIES_MAX
        self._is_wanted = asyncio.Event()
        self._failures = 0
        """How often in turn the command that is sent now has failed."""
        self._failure: Exception | None = None
        """What it failed with, if that is not of the kind that passes."""
        self._gives_up = False
        self._waiters: list[asyncio.Future[None]] = []
        """Those of `answered`."""
        self._task = asyncio.create_task(self._run(), name=f"controller to broker {broker_id}")

    def post(self, command: Command) -> None:
        """Have a command sent when all before it have been answered; never waits."""
        self._waiting.append(command)
        self._entries += entries(command)
        if self._entries > self._entries_max and len(self._waiting) > 1:
            self._merge()
        self._is_wanted.set()

    def when_answered(self, call: Told) -> None:
        """Call when all that was posted before has been answered, or the queue is closed."""
        self._waiting.append(call)
        self._is_wanted.set()

    async def answered(self) -> None:
        """Wait until all that was posted so far has been answered, or the queue is closed.

        Raises: what delivering raises meanwhile, if that is not of the kind that passes (it is tried again all the
        same).
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
        """Send what waits, each command once, and return when that is answered, or one has failed."""
        self._gives_up = True
        if self._failures > 0:
            return
        ended = asyncio.Event()
        self.when_answered(ended.set)
        answered = asyncio.create_task(ended.wait())
        await asyncio.wait([self._task, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()

    def _merge(self) -> None:
        """Put together what waits; who is to be called then is called a little later than he might be."""
        from barnabas.controller.command_merging import merged

        calls = [found for found in self._waiting if callable(found)]
        commands = merged([found for found in self._waiting if not callable(found)])
        self._waiting = deque([*commands, *calls])
        self._entries = sum(map(entries, commands))
        self._entries_max = ENTRIES_MAX + 2 * self._entries

    @property
    def is_closed(self) -> bool:
        """Whether nothing runs any more."""
        return self._task.done()

    def close(self) -> None:
        """Send nothing more; a command on its way may still arrive. Who waits for answers waits no more."""
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
        """The first of what waits, which waits no more."""
        while not self._waiting:
            self._is_wanted.clear()
            await self._is_wanted.wait()
        found = self._waiting.popleft()
        if not callable(found):
            self._entries -= entries(found)
        return found

    async def _deliver(self, command: Command) -> Answer | None:
        """Send a command until there is an answer. What no message can carry is left out, or there would be none ever;
        None if nothing is left.
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
                    logger.warning("broker %d was not told of the last decisions: %s", self._broker_id, error)
                    raise asyncio.CancelledError from error
                self._tell_of_failure(error)
                await pause(self._timers, RETRY_DELAY_MS)
            else:
                self._is_delivered(command)
                return Answer(self._broker_id, command, response)

    def _tell_of_failure(self, error: Exception) -> None:
        """Whatever keeps one broker from hearing of a command concerns no other."""
        if not isinstance(error, OSError | ConnectionLost | SessionExpired):
            self._failure = error
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        if not isinstance(error, OSError | CoordinationError):
            self._set_aside.put(self._broker_id, error)
        elif self._failures == FAILURES_TOLD:
            logger.warning("broker %d cannot be told, trying again: %s", self._broker_id, error)

    def _is_delivered(self, command: Command) -> None:
        if self._failures >= FAILURES_TOLD:
            logger.info("broker %d hears the controller again", self._broker_id)
        self._failures, self._failure = 0, None
        if self._unsendable:
            from barnabas.controller.unsendable import subjects

            for subject in subjects(command):
                self._unsendable.release((self._broker_id, subject))

    def _without_unsendable(self, command: Command, error: ValueError) -> Command | None:
        """The command without what no message can carry, itself if that is not what the `error` was about."""
        from barnabas.controller.unsendable import sendable

        rest, left_out = sendable(command)
        if rest is not None and not left_out:
            return command
        for subject in left_out or ["the whole"]:
            self._unsendable.put((self._broker_id, subject), error, reason=str(error))
        return rest


def entries(command: Command) -> int:
    """How many entries a command counts for in a broker's queue: its partitions, and one for itself."""
    return 1 + sum(len(topic.partition_states) for topic in command.topic_states)
