"""InitProducerId (key 22): a producer id for an idempotent producer.   Versions 0-5.

Behaviour: without a transactional id every call gives a fresh id and epoch 0; ids come from blocks of 1000 that the
controller hands out.
Errors: INVALID_REQUEST for a transactional id (there are no transactions yet) and for a producer id without an epoch or
the reverse; COORDINATOR_NOT_AVAILABLE while no block can be had.
Versions: 2 flexible; 3 producer id and epoch of the caller (KIP-360); 4 PRODUCER_FENCED; 5 transaction version 2
(KIP-890).
"""

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import Handler
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    if request.transactional_id is not None or (request.producer_id == -1) != (request.producer_epoch == -1):
        return _error(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = await context.broker.producer_ids.next()
    except ApiError as error:
        return _error(error.error)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _error(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


HANDLER = Handler(key=22, min_version=0, max_version=5, handle=handle)
