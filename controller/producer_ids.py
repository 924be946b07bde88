"""Blocks of producer ids, unique in the cluster for ever.

*Source*: kafka 3.9.1 `ZkProducerIdManager.getNewProducerIdBlock`.
"""

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import BadVersion, CoordinationStore
from barnabas.wire.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE = 1000
"""Producer ids handed out at once (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

PRODUCER_ID_MAX = 2**63 - 1


async def allocate_block(store: CoordinationStore, broker_id: int) -> tuple[int, int]:
    """Take the next block for a broker: its first and last id, both included.

    Raises: CoordinationError, ApiError(UNKNOWN_SERVER_ERROR) when all ids have been used.
    """
    while True:
        payload, stat = await store.get(znodes.PRODUCER_ID_BLOCK)
        first = znodes.decode_producer_id_block(payload).last + 1 if payload else 0
        last = first + PRODUCER_ID_BLOCK_SIZE - 1
        if last > PRODUCER_ID_MAX:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been handed out.")
        block = znodes.ProducerIdBlock(broker_id, first, last)
        try:
            await store.set(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(block), stat.version)
        except BadVersion:
            continue  # another broker took this block
        return first, last
