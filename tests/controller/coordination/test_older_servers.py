"""A ZooKeeper before 3.6, which knows no request for several znodes: it responds Unimplemented, and closes the
connection (UnimplementedRequestProcessor). Here a proxy does so."""

import asyncio
import struct

import pytest

from barnabas.controller.coordination.multi_read import READS_MAX
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from tests.controller.coordination.proxy import Proxy
from tests.controller.coordination.test_zookeeper_server import MULTI_READ, UNIMPLEMENTED, ServerUnderTest

pytestmark = pytest.mark.slow


class OlderServer(Proxy):
    """A proxy that forwards the requests which an older server knows."""

    refused = 0

    async def forward(
        self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        is_first = True  # which is the handshake, and has no number
        while True:
            head = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(head, "big"))
            xid, kind = struct.unpack_from(">ii", frame)
            if not is_first and kind == MULTI_READ:
                self.refused += 1
                writer.write(struct.pack(">iiqi", 16, xid, 0, UNIMPLEMENTED))
                writer.close()
                return
            up_writer.write(head + frame)
            is_first = False


async def test_znodes_are_read_one_by_one_from_an_older_server() -> None:
    """The server closes the connection at a request for several znodes. The connection is lost once, however many
    requests follow."""
    async with ServerUnderTest() as server, (older := OlderServer(f"127.0.0.1:{server.port}")):
        session = await ZooKeeperSession.open(older.address)
        paths = [f"/{number}" for number in range(5 * READS_MAX)]
        await asyncio.gather(*(session.create(path, path.encode()) for path in paths))
        for _ in range(2):
            found = await session.get_many([*paths, "/none"])
            assert [each and each[0] for each in found] == [*(path.encode() for path in paths), None]
        assert (older.refused, older.connections) == (1, 2)
        await session.close()
