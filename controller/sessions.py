"""This process's successive sessions with the metadata store, and their ephemeral znodes."""

import contextlib

from barnabas.controller.coordination.interface import BadVersion, ConnectionLost, CoordinationStore, NoNode, Stat


class StoreSessions:
    """The current session (`store`), and the former ones of this process.

    Shared by all parts of one controller, and owned by the event loop. After an await, `store` may be another session
    than before.
    """

    def __init__(self, store: CoordinationStore) -> None:
        self.store = store
        self._session_ids = {store.session_id}

    def enter(self, store: CoordinationStore) -> None:
        """Continue in a new session, after the last one has expired."""
        self.store = store
        self._session_ids.add(store.session_id)

    def own(self, stat: Stat) -> bool:
        """Whether an ephemeral znode belongs to this process: to the current session, which may have written it
        although the response was lost, or to an earlier one, whose end ZooKeeper may report before it deletes its
        znodes.
        """
        return stat.ephemeral_owner in self._session_ids

    async def delete_own(self, path: str, stat: Stat) -> None:
        """Delete a znode of this process, in the version of `stat`. The next creation shows whether it worked.

        Raises: CoordinationError.
        """
        with contextlib.suppress(NoNode, BadVersion, ConnectionLost):
            await self.store.delete(path, stat.version)
