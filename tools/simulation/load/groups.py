"""Members of a consumer group in a simulated cluster: they join, leave, die, and share partitions meanwhile."""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.client.client import ClientError
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.group import GroupMember, fetch_committed
from tools.simulation.load.clients import FOUND_LESS_MAX, Worker

GROUP: Final = "shared"
SESSION_TIMEOUT_MS: Final = 6_000
REBALANCE_TIMEOUT_MS: Final = 8_000
LEAVE_PROBABILITY: Final = 0.02
DIE_PROBABILITY: Final = 0.01


class Member(Worker):
    """Commits increasing offsets of its assigned partitions, starting with the group's committed offset. A fenced
    member must not commit any more: the offsets would go back, which each member checks when it gets a partition.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._member: GroupMember | None = None
        self._offsets: dict[TopicPartition, int] = {}
        self._found_less = 0

    async def run_once(self) -> None:
        if self._member is None or self._member.must_rejoin:
            await self._join()
        await self.pause(0.3)
        assert self._member is not None
        if self._member.must_rejoin:
            return
        if self._offsets:
            await self._commit(self._member)
        else:
            self.done += 1  # the other members have all partitions
        at = self.draw.random()
        if at < LEAVE_PROBABILITY:
            await self.stop()
        elif at < LEAVE_PROBABILITY + DIE_PROBABILITY:
            self.recorder.tell(f"{self.name}: dies")
            await self._member.forget()
            self._member = None

    async def _join(self) -> None:
        if self._member is None:
            self._member = GroupMember(
                self.client,
                GROUP,
                [self.topic],
                self.positions,
                heartbeat_interval_s=1.0,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            )
        self._offsets = {}
        mine = await self._member.join()
        self.recorder.count("rebalances of members")
        self.recorder.tell(f"{self.name}: has {[index for _, index in mine]}")
        found = await fetch_committed(self.client, GROUP, mine) if mine else {}
        for name in mine:
            least = self.recorder.committed.get((GROUP, name[1]), 0)
            offset = found.get(name, 0)
            if offset < least:
                # A broker may still act as the coordinator for a while after another one was elected.
                self._found_less += 1
                if self._found_less > FOUND_LESS_MAX:
                    self.recorder.wrong.append(f"{GROUP} committed {least} of partition {name[1]}, found {offset}")
                self._member.must_rejoin = True
                return
            self._offsets[name] = offset
        self._found_less = 0

    async def _commit(self, member: GroupMember) -> None:
        offsets = {name: offset + self.draw.randint(1, 3) for name, offset in self._offsets.items()}
        try:
            await member.commit(offsets, timeout_s=0)
        except ClientError:
            # The request may arrive later, after the next one: a retry would not end that, a new generation does.
            member.must_rejoin = True
            raise
        if member.must_rejoin:
            return
        self._offsets = offsets
        self.done += 1
        self.recorder.tell(f"{self.name}: committed {[(index, offset) for (_, index), offset in offsets.items()]}")
        for (_, index), offset in offsets.items():
            if offset <= (before := self.recorder.committed.get((GROUP, index), 0)):
                self.recorder.wrong.append(f"{self.name} committed {offset} of partition {index} after {before}")
            self.recorder.committed[GROUP, index] = offset

    async def stop(self) -> None:
        if self._member is not None:
            await self._member.leave()
            self._member = None
