"""DescribeCluster (key 60): brokers, controller and cluster id (KIP-700).   Versions 0-2.

Behaviour: addresses are those of the listener that the request came in on.
Errors: endpoint types other than brokers: MISMATCHED_ENDPOINT_TYPE for controllers, UNSUPPORTED_ENDPOINT_TYPE for
anything else (version 1, KIP-919).
Authorization: Describe on Cluster (operations on the cluster): no operations.
Versions: 1 endpoint type; 2 fenced brokers (KIP-1073), of which there are none: a broker that is down is not
registered.
"""

from barnabas.broker.api.authorization import operations_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import NOT_ASKED
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        mismatched = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if mismatched else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"this is an endpoint of brokers (1); the request asks for type {request.endpoint_type}",
        )
    metadata = context.services.metadata
    brokers = [
        DescribeClusterBroker(broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in metadata.brokers()
        if (endpoint := broker.endpoints.get(context.session.listener.name)) is not None
    ]
    known = any(broker.broker_id == metadata.controller_id for broker in brokers)
    return DescribeClusterResponse(
        cluster_id=context.services.cluster_id,
        controller_id=metadata.controller_id if known else -1,
        brokers=brokers,
        cluster_authorized_operations=(
            operations_on_cluster(context) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


HANDLER: Handler[DescribeClusterRequest, DescribeClusterResponse] = Handler(
    key=60, min_version=0, max_version=2, handle=handle
)
