"""The least that a Python process can do for the same bytes, without a protocol: receive, CRC and write; read and send.

`python -m benchmarks.floor FILE` is the process that is measured. It serves one connection after the other: the first
byte says which way the bytes go, then frames of a fixed size follow, each confirmed by a byte.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from crc32c import crc32c

from benchmarks.model import GIB, MIB, Figure, Figures, Scale
from benchmarks.processes import cpu_seconds, drop_page_cache, resident_mib

WRITTEN_FRAME = 128 * 1024
"""batch.size of W1."""
READ_FRAME = MIB
"""max.partition.fetch.bytes of a consumer with defaults."""
IN_FLIGHT = 5
SIZE_FULL, SIZE_QUICK = 2 * GIB, 256 * MIB


def receive_and_write(connection: socket.socket, descriptor: int) -> None:
    """Store frames until the peer ends the connection."""
    frame = memoryview(bytearray(WRITTEN_FRAME))
    position = 0
    while _receive(connection, frame):
        crc32c(frame)
        position += os.pwrite(descriptor, frame, position)
        connection.sendall(b"\0")


def read_and_send(connection: socket.socket, descriptor: int) -> None:
    """Send a frame for each byte that arrives; the kernel copies it."""
    position = 0
    while connection.recv(1):
        end = position + READ_FRAME
        while position < end:
            position += os.sendfile(connection.fileno(), descriptor, position, end - position)


def _receive(connection: socket.socket, frame: memoryview) -> bool:
    """Fill a frame, with one wake-up where the kernel can; False at the end of the connection."""
    received = 0
    while received < len(frame):
        size = connection.recv_into(frame[received:], 0, socket.MSG_WAITALL)
        if not size:
            return False
        received += size
    return True


def serve(path: str) -> None:
    """Serve for ever; the port is told on stdout."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                action = receive_and_write if connection.recv(1) == b"w" else read_and_send
                action(connection, descriptor)


def _send_frames(connection: socket.socket, count: int) -> None:
    """Send frames, with at most `IN_FLIGHT` unconfirmed."""
    room = threading.Semaphore(IN_FLIGHT)

    def read_confirmations() -> None:
        left = count
        while left:
            confirmed = len(connection.recv(min(left, IN_FLIGHT)))
            left -= confirmed
            room.release(confirmed)

    reader = threading.Thread(target=read_confirmations)
    reader.start()
    frame = os.urandom(WRITTEN_FRAME)
    for _ in range(count):
        room.acquire()
        connection.sendall(frame)
    reader.join()


def _ask_for_frames(connection: socket.socket, count: int) -> None:
    frame = memoryview(bytearray(READ_FRAME))
    connection.sendall(b"\0")
    for _ in range(count - 1):
        connection.sendall(b"\0")  # the next one is asked for before the last one is here, as consumers do
        _receive(connection, frame)
    _receive(connection, frame)


def _figures(name: str, way: bytes, load: Callable[[socket.socket, int], None], frame: int, size: int) -> Figures:
    """Measure a load after it has run once, as with the brokers; its writes use memory that was just freed."""
    with tempfile.TemporaryDirectory(prefix="floor-") as folder:
        path = Path(folder) / "file"
        with path.open("wb") as file:
            for _ in range(size // MIB if way == b"r" else 0):
                file.write(os.urandom(MIB))
        os.sync()
        command = [sys.executable, "-m", "benchmarks.floor", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                port = int(process.stdout.readline())
                _run(port, way, load, size // frame)
                if way == b"w":
                    os.truncate(path, 0)
                    drop_page_cache(path.parent)
                before_s, started_s = cpu_seconds(process.pid), perf_counter()
                _run(port, way, load, size // frame)
                elapsed_s, cpu_s = perf_counter() - started_s, cpu_seconds(process.pid) - before_s
                yield Figure(f"{name}throughput", size / MIB / elapsed_s, "MiB/s")
                yield Figure(f"{name}broker CPU", cpu_s / (size / GIB), "s/GiB")
                yield Figure("resident memory", resident_mib(process.pid), "MiB")
            finally:
                process.kill()


def _run(port: int, way: bytes, load: Callable[[socket.socket, int], None], frames: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(way)
        load(connection, frames)


def produce_floor(scale: Scale) -> Figures:
    """The best possible figures of W1."""
    yield from _figures("", b"w", _send_frames, WRITTEN_FRAME, scale.of(SIZE_FULL, SIZE_QUICK))


def fetch_floor(scale: Scale) -> Figures:
    """The best possible figures of one consumer of W4."""
    yield from _figures("1 consumer, hot: ", b"r", _ask_for_frames, READ_FRAME, scale.of(SIZE_FULL, SIZE_QUICK))


if __name__ == "__main__":
    serve(sys.argv[1])
