"""The configuration of a running broker, and the followers of its keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from barnabas.broker.configuration.config import BrokerConfig, effective_value
from barnabas.broker.configuration.definitions import READ_ONLY, ConfigKey
from barnabas.broker.configuration.keys import LISTENER_PREFIX, OBEYED_KEYS

Value = TypeVar("Value")

DYNAMIC_KEYS: Final = tuple(key for key in OBEYED_KEYS if key.mode != READ_ONLY)
"""Keys that may change in a running broker."""


class LiveConfig(BrokerConfig):
    """The present configuration of a broker: the one at its start, with the changes at run time.

    A part that reads an attribute when it needs the value has nothing else to do. A part that must act on a change, or
    may not depend on this class (storage, the controller), registers a follower: `follow`. `raw`, `value` and `source`
    stay as at the start: DescribeConfigs distinguishes the two. Owned by the event loop.
    """

    _dynamic: Mapping[str, str]
    _followers: list[tuple[frozenset[str], Callable[[], object]]]
    _listener_followers: list[Callable[[], object]]

    def __init__(self, static: BrokerConfig) -> None:
        vars(self).update(vars(static), _dynamic={}, _followers=[], _listener_followers=[])

    def text_of(self, name: str) -> str | None:
        return self._dynamic[name] if name in self._dynamic else self.raw.get(name)

    def changed_keys(self) -> frozenset[str]:
        """The names of the keys that are changed at run time."""
        return frozenset(self._dynamic)

    def follow(self, key: ConfigKey[Value], follower: Callable[[Value], object]) -> None:
        """Call `follower` with the value of `key`, for example `BrokerConfig.max_connections`, after each change of it.
        It must not raise; if it does, the other followers are called before the exception is raised.
        """
        self.follow_any([key], lambda: follower(getattr(self, key.attribute)))

    def follow_any(self, keys: Iterable[ConfigKey[Any]], follower: Callable[[], object]) -> None:
        """Call `follower` once after each change of one or more of `keys`. It must not raise, as in `follow`."""
        self._followers.append((frozenset(key.name for key in keys), follower))

    def follow_listeners(self, follower: Callable[[], object]) -> None:
        """Call `follower` after each change of keys with the prefix of a listener; it must not raise."""
        self._listener_followers.append(follower)

    def followed(self) -> frozenset[str]:
        """The names of all keys with a follower."""
        return frozenset().union(*(names for names, _ in self._followers))

    def change(self, dynamic: Mapping[str, str]) -> None:
        """Apply `dynamic`, the texts of all keys that are now changed at run time, in place of those of the last call.

        Only keys whose text differs are processed. Texts that cannot be parsed (written directly to the metadata store,
        without the checks) are skipped: the value at the start holds.
        """
        before, vars(self)["_dynamic"] = self._dynamic, dynamic
        differing = {name for name in before.keys() | dynamic.keys() if before.get(name) != dynamic.get(name)}
        changed = [key for key in DYNAMIC_KEYS if not differing.isdisjoint((key.name, *key.synonyms))]
        for key in changed:
            vars(self)[key.attribute] = effective_value(key.name, lambda name: self.current_value(name, dynamic))
        names = {key.name for key in changed}
        with contextlib.ExitStack() as stack:  # calls all of them, even if some raise, the last one first
            if any(name.startswith(LISTENER_PREFIX) for name in differing):
                for follower in reversed(self._listener_followers):
                    stack.callback(follower)
            for followed, follower in reversed(self._followers):
                if not names.isdisjoint(followed):
                    stack.callback(follower)
