"""The delegation tokens of a cluster that has them: cached, changed and followed.

Every broker has one repository. A change is two writes in one transaction: the token's znode, if it has the version
that was read, and a sequential notification, which all brokers follow (`notifications.py`).

*Source*: kafka 3.9.1 `DelegationTokenManagerZk.scala`, `KafkaZkClient.scala`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from barnabas.clock import Clock
from barnabas.controller.bootstrap import create_missing
from barnabas.controller.coordination.interface import (
    BadVersion,
    CoordinationStore,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Stat,
)
from barnabas.controller.notifications import CHANGE_TIMEOUT_MS, ChangeNotifications, answered_in_time
from barnabas.controller.token_znodes import (
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES,
    TOKEN_PATHS,
    TOKENS,
    DelegationToken,
    decode_token,
    decode_token_change,
    encode_token,
    encode_token_change,
    is_token_id,
    token_path,
)
from barnabas.controller.znodes import DamagedZnode
from barnabas.set_aside import SetAside
from barnabas.timers import Timers

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 100
"""The number of tokens that are read together."""

TokenListener = Callable[[str], None]

Decide = Callable[[DelegationToken | None], DelegationToken | None]
"""Computes the new state of a token from its current one; None is a token that does not exist."""


class TokenRepository:
    """A cache of all delegation tokens, owned by the event loop; call `start` first. A change waits up to
    `change_timeout_ms` for the store.

    A task, from `start` to `stop`, follows changes by others; handlers call the other methods.
    """

    def __init__(
        self, store: CoordinationStore, clock: Clock, timers: Timers, *, change_timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> None:
        self._store = store
        self._timers = timers
        self._change_timeout_ms = change_timeout_ms
        self._tokens: dict[str, DelegationToken] = {}
        self._listeners: list[TokenListener] = []
        self._restoring = asyncio.Lock()
        self.set_aside = SetAside[str]("following changes of delegation tokens", clock, first_delay_ms=0)
        self._notifications = ChangeNotifications[str](
            TOKEN_CHANGES,
            TOKEN_CHANGE_PREFIX,
            decode_token_change,
            self.refresh,
            self.restore,
            clock=clock,
            timers=timers,
            set_aside=self.set_aside,
        )

    async def start(self) -> None:
        """Load everything, call the listeners, and follow changes from then on. A damaged token is logged, and does not
        exist.

        Raises: CoordinationError.
        """
        await self.restore()
        await self._notifications.watch(self._store)
        names = sorted({*filter(_is_known, await self._children()), *self._tokens})
        for start in range(0, len(names), _READ_AT_ONCE):
            self._tell(await self._read(names[start : start + _READ_AT_ONCE]))
        self._notifications.follow()

    async def rejoin(self, store: CoordinationStore) -> None:
        """Continue in a new session after the last one has expired; listeners are called for changes in between.

        Raises: CoordinationError; then it may be called again with another session.
        """
        await self.stop()
        self._store = store
        await self.start()

    async def stop(self) -> None:
        """Stop following changes; the cache stays."""
        await self._notifications.stop()

    async def restore(self) -> list[str]:
        """Create the fixed znodes that do not exist; returns their paths. Tokens that another program has deleted are
        not written again.

        Raises: CoordinationError.
        """
        async with self._restoring:
            created = await create_missing(self._store, dict.fromkeys(TOKEN_PATHS, b""))
            if TOKEN_CHANGES in created:
                self._notifications.were_deleted()
            return created

    async def _children(self) -> list[str]:
        try:
            return await self._store.get_children(TOKENS)
        except NoNode:
            return []

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """All tokens, by id, read-only."""
        return MappingProxyType(self._tokens)

    def subscribe(self, listener: TokenListener) -> None:
        """Call `listener(token_id)` after each change of a token by any broker, and at the start for each one. It must
        not raise.
        """
        self._listeners.append(listener)

    async def change(self, token_id: str, decide: Decide) -> DelegationToken | None:
        """Write the token that `decide` returns, or delete the token if it returns None, and notify all brokers;
        returns the token.

        If another broker changes it at the same time, `decide` is called again with the new state: no change is lost.
        On return the cache is updated and the listeners were called.

        Raises: the errors of `decide`; ApiError(REQUEST_TIMED_OUT) if the store is unreachable: the change may take
        effect later; ApiError(KAFKA_STORAGE_ERROR) if it could not be written (a full disk): nothing has changed.
        """
        async with answered_in_time(self._timers, self._change_timeout_ms, "a change of a delegation token"):
            while True:
                [found] = await self._store.get_many([token_path(token_id)])
                current = self._decoded(token_id, found)
                decided = decide(current)
                if decided == current or await self._write(token_id, decided, found):
                    break
            await self.refresh(token_id)
        return decided

    async def _write(self, token_id: str, token: DelegationToken | None, found: tuple[bytes, Stat] | None) -> bool:
        """Write a token in place of what was found; returns whether no other broker was faster."""
        path = token_path(token_id)
        write: Operation
        if found is None:
            assert token is not None, "a token that does not exist is not deleted"
            write = Create(path, encode_token(token))
        elif token is None:
            write = Delete(path, found[1].version)
        else:
            write = SetData(path, encode_token(token), found[1].version)
        notification = Create(f"{TOKEN_CHANGES}/{TOKEN_CHANGE_PREFIX}", encode_token_change(token_id), sequence=True)
        try:
            await self._store.multi([write, notification])
        except (NodeExists, BadVersion):
            return False
        except NoNode:
            await self.restore()  # if it was the parent of one of them
            return False
        return True

    async def refresh(self, token_id: str) -> None:
        """Read a token again, and call the listeners if it has changed."""
        self._tell(await self._read([token_id]))

    def _tell(self, changed: Iterable[str]) -> None:
        for token_id in changed:
            for listener in self._listeners:
                with self.set_aside.attempt(token_id):
                    listener(token_id)

    async def _read(self, names: list[str]) -> list[str]:
        """Read tokens; returns the ids of those that have changed."""
        found = await self._store.get_many([token_path(name) for name in names])
        changed = []
        for name, answer in zip(names, found, strict=True):
            token = self._decoded(name, answer)
            if token == self._tokens.get(name):
                continue
            changed.append(name)
            if token is None:
                del self._tokens[name]
            else:
                self._tokens[name] = token
        return changed

    def _decoded(self, token_id: str, answer: tuple[bytes, Stat] | None) -> DelegationToken | None:
        """The token in a znode; None without a znode, and if it is damaged: nobody can use such a token."""
        try:
            return None if answer is None else decode_token(token_id, answer[0])
        except DamagedZnode as error:
            logger.error("a delegation token cannot be read, and does not count: %s", error)
            return None


def _is_known(name: str) -> bool:
    if not is_token_id(name):
        logger.warning("a znode that is no delegation token is ignored: %s/%s", TOKENS, name)
        return False
    return True
