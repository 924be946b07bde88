"""A ZooKeeper before 3.6, which knows no request for several znodes: it answers Unimplemented, and closes the
connection (UnimplementedRequestProcessor). Here something between does so."""

import asyncio
import struct

from barnabas.controller.coordination.multi_read import READS_MAX
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from tests.controller.coordination.test_zookeeper_server import MULTI_READ, UNIMPLEMENTED, ServerUnderTest


class OlderServer:
    """The way to a server, as far as it knows requests; an async context manager."""

    def __init__(self, port: int) -> None:
        self._upstream_port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = self.refused = 0

    async def __aenter__(self) -> "OlderServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        self._writers += [writer, up_writer]
        await asyncio.gather(
            self._requests(reader, up_writer, writer), self._answers(up_reader, writer), return_exceptions=True
        )

    async def _requests(
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

    async def _answers(self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await up_reader.read(65536):
            writer.write(data)


async def test_znodes_are_read_one_by_one_from_a_server_that_closes_upon_several() -> None:
    """However many requests it takes, the connection is lost once."""
    async with ServerUnderTest() as server, OlderServer(server.port) as older:
        session = await ZooKeeperSession.open(older.address)
        paths = [f"/{number}" for number in range(5 * READS_MAX)]
        await asyncio.gather(*(session.create(path, path.encode()) for path in paths))
        for _ in range(2):
            found = await session.get_many([*paths, "/none"])
            assert [each and each[0] for each in found] == [*(path.encode() for path in paths), None]
        assert (older.refused, older.connections) == (1, 2)
        await session.close()
