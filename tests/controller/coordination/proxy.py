"""A proxy to a coordination server that does not always forward everything."""

import asyncio


class Proxy:
    """The way to a server at HOST:PORT. It can be slow to let a connection through (`delay_s`), and can
    forget the first one; an async context manager."""

    def __init__(self, upstream: str) -> None:
        self._upstream_host, _, port = upstream.rpartition(":")
        self._upstream_port = int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.delay_s = 0.0
        self.forgets_first = False

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        if self.forgets_first and self.connections == 1:
            return
        up_reader, up_writer = await asyncio.open_connection(self._upstream_host, self._upstream_port)
        self._writers.append(up_writer)
        await asyncio.sleep(self.delay_s)  # Real time: of a slow network
        await asyncio.gather(
            self.forward(reader, up_writer, writer), self._copy(up_reader, writer), return_exceptions=True
        )

    async def forward(
        self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        """Forward what a client sends; a subclass may respond itself."""
        await self._copy(reader, up_writer)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()
