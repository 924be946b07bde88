"""A flipped bit in a log of one broker, whose records other brokers have, too."""

from __future__ import annotations

import random
from typing import Final

from barnabas.storage.segment import LOG_SUFFIX
from barnabas.wire.record_batch import HEADER_SIZE, iter_headers
from tools.simulation.broker import SimulatedBroker
from tools.simulation.cluster import Cluster
from tools.simulation.load.events import PARTITIONS, TOPIC
from tools.simulation.world.disk import SimulatedDisk

BYTES_MIN: Final = 1_000
"""The minimum size of a log that gets damaged. Whole batches after the damage prove that it was no crash."""

LEADER_EPOCH_BYTES: Final = range(12, 16)
"""The position of the leader epoch in a batch's header."""


def damage(cluster: Cluster, broker: SimulatedBroker) -> bool:
    """Flip a bit of a log whose records other brokers have, too. It happens once in a run, so nothing is lost by it.
    Returns whether there was such a log. The bit is in the last segment, because a start after a crash checks only
    that, and not in a leader epoch, which no checksum covers, so that nothing could detect the damage.
    """
    draw = cluster.around.draw
    for index in draw.sample(range(PARTITIONS), PARTITIONS):
        name = f"{TOPIC}-{index}"
        state = cluster.states.get((TOPIC, index))
        path = _last_segment(broker, name)
        is_everywhere = state is not None and len(state.isr) == len(cluster.brokers) > 1
        if is_everywhere and path is not None and broker.disk.stat(path).size >= BYTES_MIN:
            cluster.around.fault("damaged", f"{name} of {broker.name}")
            cluster.damaged = name
            broker.disk.turn_bit(path, _position(draw, broker.disk, path))
            return True
    return False


def _last_segment(broker: SimulatedBroker, log: str) -> str | None:
    """The path of the file with the newest records of a log, if there are any."""
    directory = f"/{broker.name}/{log}"
    if not broker.disk.exists(directory):
        return None
    return max(
        (f"{directory}/{each.name}" for each in broker.disk.list(directory) if each.name.endswith(LOG_SUFFIX)),
        default=None,
    )


def _position(draw: random.Random, disk: SimulatedDisk, path: str) -> int:
    descriptor = disk.open(path)
    data = bytes(disk.pread(descriptor, disk.stat(path).size, 0))
    disk.close(descriptor)
    epochs = {header.position + at for header in iter_headers(data) for at in LEADER_EPOCH_BYTES}
    return draw.choice([at for at in range(HEADER_SIZE, BYTES_MIN // 2) if at not in epochs])
