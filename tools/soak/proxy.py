"""A network that loses replies: now and then a connection is cut with a reply still under way.

The request behind a lost reply was carried out; the client cannot know and sends it again. Killing a broker hits that
moment rarely.
"""

import asyncio
import random
import threading


class LossyProxy:
    """Forwards 127.0.0.1:`port` to `target_port`, in a thread of its own; `loss` is the chance of a cut per reply."""

    def __init__(self, target_port: int, *, loss: float, seed: int) -> None:
        self._target_port = target_port
        self._loss = loss
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy-proxy", daemon=True)
        self.port = 0
        self.cuts = 0

    def __enter__(self) -> "LossyProxy":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the loop's next round

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, target_writer, loss=0.0)),
            asyncio.create_task(self._pump(target_reader, writer, loss=self._loss)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            target_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, loss: float) -> None:
        try:
            while data := await reader.read(65536):
                if self._random.random() < loss:
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return
