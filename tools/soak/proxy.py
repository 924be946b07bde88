"""A network that loses responses: sometimes a connection is cut while a response is under way.

The request was carried out; the client cannot know that and sends it again. Killing a broker rarely meets that moment,
unless its responses are delayed before.
"""

import asyncio
import random
import socket
import threading
from contextlib import suppress


class LossyProxy:
    """Forwards 127.0.0.1:`port` to `target_port`, in a separate thread; `loss` is the probability of a cut per
    response.
    """

    def __init__(self, target_port: int, *, loss: float, seed: int) -> None:
        self._target_port = target_port
        self._loss = loss
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy-proxy", daemon=True)
        # Not asyncio's server: its close forgets connections that it has just accepted.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._clients: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        self.loses_all = False
        """Whether all responses are lost; connections stay open meanwhile, and are closed afterwards."""

    def __enter__(self) -> "LossyProxy":
        self._thread.start()
        self._loop.call_soon_threadsafe(self._loop.add_reader, self._listener, self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for each in (self._listener, *self._clients):
            each.close()

    async def _end_tasks(self) -> None:
        self._loop.remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        self._clients.add(client)
        task = self._loop.create_task(self._forward(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, client: socket.socket) -> None:
        with client, socket.socket() as target:
            target.setblocking(False)
            for end in (client, target):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError):
                await self._loop.sock_connect(target, ("127.0.0.1", self._target_port))
                pumps = [
                    asyncio.create_task(self._pump(client, target, loss=0.0)),
                    asyncio.create_task(self._pump(target, client, loss=self._loss)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        self._clients.discard(client)

    async def _pump(self, source: socket.socket, sink: socket.socket, *, loss: float) -> None:
        has_lost = False
        while data := await self._loop.sock_recv(source, 65536):
            if loss and self.loses_all:
                self.cuts += not has_lost
                has_lost = True
                continue
            if has_lost:
                return
            if self._random.random() < loss:
                self.cuts += 1
                return
            await self._loop.sock_sendall(sink, data)
