"""The initial content of the metadata store, before the first broker registers: the fixed znodes and a cluster id."""

import logging
from collections.abc import Callable, Mapping

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import CoordinationStore, Create, NodeExists, NoNode
from barnabas.wire.names import random_topic_id, topic_id_to_text

logger = logging.getLogger(__name__)


class ClusterIdMismatch(Exception):
    """The store belongs to another cluster than the configured one."""


async def create_missing(store: CoordinationStore, payloads: Mapping[str, bytes]) -> list[str]:
    """Create the missing ones of these znodes, and their parents, in one transaction; returns their paths.

    Several brokers may call it at once.
    """
    paths = znodes.with_ancestors(payloads)
    while True:
        found = zip(paths, await store.get_many(paths), strict=True)
        missing = [Create(path, payloads.get(path, b"")) for path, answer in found if answer is None]
        try:
            if missing:
                await store.multi(missing)
        except NodeExists:
            continue  # another broker was faster: look again
        except NoNode as error:
            if error.path != "/":
                continue  # a concurrent deletion
            await store.create_root()
            continue
        return [creation.path for creation in missing]


def identity(cluster_id: str) -> dict[str, bytes]:
    """The payloads of the znodes that identify the cluster, by path."""
    return {znodes.FEATURE: znodes.encode_feature(), znodes.CLUSTER_ID: znodes.encode_cluster_id(cluster_id)}


async def create_fixed_znodes(store: CoordinationStore, cluster_id: str) -> list[str]:
    """Create the fixed znodes that are missing; returns their paths."""
    return await create_missing(store, {**dict.fromkeys(znodes.PERSISTENT_PATHS, b""), **identity(cluster_id)})


async def prepare_store(
    store: CoordinationStore,
    random_bytes: Callable[[int], bytes],
    cluster_id: str | None = None,
    *,
    is_certain: bool = False,
) -> str:
    """Create the fixed znodes, and return the cluster id.

    A new cluster gets `cluster_id`, or a random id in Kafka's format (a UUID in URL-safe base64). A damaged id is
    written again if `cluster_id` `is_certain`: the broker has been in the cluster before.

    Raises: ClusterIdMismatch if the cluster has an id and `cluster_id` is another one; DamagedZnode.
    """
    await create_fixed_znodes(store, cluster_id or topic_id_to_text(random_topic_id(random_bytes)))
    payload, stat = await store.get(znodes.CLUSTER_ID)
    try:
        existing_id = znodes.decode_cluster_id(payload)
    except znodes.DamagedZnode as damage:
        if cluster_id is None or not is_certain:
            raise
        logger.error("writing the id of cluster %s again: %s", cluster_id, damage)
        await store.set(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id), stat.version)
        existing_id = cluster_id
    if cluster_id is not None and cluster_id != existing_id:
        raise ClusterIdMismatch(f"the metadata store belongs to cluster {existing_id}, not to {cluster_id}")
    return existing_id
