"""A group whose member commits, joins again, and then sends a commit of its earlier generation, as if the network had
delayed it. The broker must refuse it, because other members may have committed larger offsets by then.
"""

import asyncio
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException

from barnabas.broker.client.client import BrokerConnection, ClientError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tools.soak.commits import fetch, moved_back
from tools.soak.workload import Committer

LAST_VERSION_WITH_TOPIC_NAMES = 9
PATIENCE_S = 10.0


class DelayedCommitter(Committer):
    """Commits increasing offsets of a group as its only member, and sometimes one of an earlier generation."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._member_id = ""

    def run_once(self) -> None:
        try:
            before = self.recorder.commits()
            self.problems += moved_back(before, fetch(self._consumer, self._group, self.topic, [0]))
            asyncio.run(self._two_generations(before.get((self._group, 0), 0)))
        except (KafkaException, ClientError):
            self.pause(0.05)

    async def _two_generations(self, offset: int) -> None:
        host, _, port = self.bootstrap_servers.rpartition(":")
        connection = BrokerConnection(host, int(port), "soak", PATIENCE_S)
        try:
            await connection.open()
            earlier = await self._join(connection)
            if await self._commit(connection, earlier, offset + 2):
                self.add_commit(self._group, {0: offset + 2})
            later = await self._join(connection)
            if await self._commit(connection, later, offset + 3):
                self.add_commit(self._group, {0: offset + 3})
                self.done += earlier != later
            await self._commit(connection, earlier, offset + 1)
        finally:
            with suppress(ClientError):
                await connection.close()

    async def _join(self, connection: BrokerConnection) -> int:
        """The new generation; -1 if there is none."""
        answer = await self._ask_to_join(connection)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._ask_to_join(connection)
        if answer.error_code:
            self._member_id = ""
            return -1
        self._member_id = answer.member_id
        assignment = SyncGroupRequestAssignment(member_id=self._member_id, assignment=b"everything")
        synced = await connection.send(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=answer.generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[assignment],
            )
        )
        return -1 if synced.error_code else int(answer.generation_id)

    async def _ask_to_join(self, connection: BrokerConnection) -> Any:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return await connection.send(request, wait_s=PATIENCE_S)

    async def _commit(self, connection: BrokerConnection, generation: int, offset: int) -> bool:
        """Whether the commit was acknowledged. None is sent without a generation."""
        if generation < 0:
            return False
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        answer = await connection.send(request, max_version=LAST_VERSION_WITH_TOPIC_NAMES)
        return not answer.topics[0].partitions[0].error_code
