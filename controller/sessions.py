"""This process's sessions with the metadata store, one after the other, and the ephemeral znodes that are theirs."""

import contextlib

from barnabas.controller.coordination.interface import BadVersion, ConnectionLost, CoordinationStore, NoNode, Stat


class StoreSessions:
    """Which session is the present one (`store`), and which were before it in this process.

    Shared by all parts of one controller, and owned by the event loop. What was read from `store` before an await may
    belong to a session that is over after it.
    """

    def __init__(self, store: CoordinationStore) -> None:
        self.store = store
        self._session_ids = {store.session_id}

    def enter(self, store: CoordinationStore) -> None:
        """Go on in a new session, after the one before has expired."""
        self.store = store
        self._session_ids.add(store.session_id)

    def own(self, stat: Stat) -> bool:
        """Whether an ephemeral znode is of this process: of the present session, which may have written it although the
        answer was lost, or of an earlier one, of whose end ZooKeeper may tell before it deletes its znodes.
        """
        return stat.ephemeral_owner in self._session_ids

    async def delete_own(self, path: str, stat: Stat) -> None:
        """Delete a znode of this process, as it was when `stat` was read. Whether it worked shows when it is created
        again.

        Raises: CoordinationError.
        """
        with contextlib.suppress(NoNode, BadVersion, ConnectionLost):
            await self.store.delete(path, stat.version)
