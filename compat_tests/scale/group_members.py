"""Many aiokafka consumers of one group in one process: `group_members.py BOOTSTRAP GROUP TOPIC COUNT`.

Prints a line of JSON whenever something changes: {"at": monotonic seconds, "joining": consumers told to join,
"assigned": those with partitions, "generations": [those that they know]}. Ends when standard input does.
"""

import asyncio
import json
import logging
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer

LOOK_EVERY_S = 0.05
JOIN_EVERY_S = 0.01


def state(consumers: list[AIOKafkaConsumer]) -> dict[str, Any]:
    coordinators = [consumer._coordinator for consumer in consumers]
    return {
        "joining": len(consumers),
        "assigned": sum(bool(consumer.assignment()) for consumer in consumers),
        "generations": sorted({each.generation if each else -1 for each in coordinators}),
    }


async def main(bootstrap_servers: str, group: str, topic: str, count: int) -> None:
    logging.disable(logging.CRITICAL)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "group_id": group, "enable_auto_commit": False}
    consumers: list[AIOKafkaConsumer] = []
    starts: list[asyncio.Task[None]] = []
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def join_all() -> None:
        for _ in range(count):
            consumers.append(AIOKafkaConsumer(topic, **settings))
            starts.append(asyncio.create_task(consumers[-1].start()))
            await asyncio.sleep(JOIN_EVERY_S)  # Real time: the pace of this program

    joining = asyncio.create_task(join_all())
    before: dict[str, Any] = {}
    while not ended.done():
        now = state(consumers)
        if now != before:
            before = now
            print(json.dumps({"at": time.monotonic(), **now}), flush=True)
        await asyncio.sleep(LOOK_EVERY_S)  # Real time: the pace of this program
    await asyncio.gather(joining, *starts, return_exceptions=True)
    await asyncio.gather(*(consumer.stop() for consumer in consumers), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
