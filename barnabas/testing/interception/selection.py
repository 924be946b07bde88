"""The selection of requests for a fault, or in a recording, and the number of a fault's hits."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypedDict

from barnabas.broker.handlers import apis_between_brokers, served_apis
from barnabas.testing.contents.topic import Topic, topic_name
from barnabas.testing.interception import entries
from barnabas.testing.interception.api_entries import GROUP, PARTITION, TOPIC, TRANSACTIONAL_ID
from barnabas.testing.interception.request import BETWEEN_BROKERS, Request
from barnabas.testing.waiting.timeouts import check_count
from barnabas.wire.messages import API_NAMES
from barnabas.wire.messages import api as messages_of
from barnabas.wire.schema import Message

Api = str | int | type[Message]
"""An API by Kafka's name ("Produce"), its key, or its request's class."""

SEED_MAX: Final = 2**32
VALUES_TOLD_MAX: Final = 5
"""The maximum number of values of a keyword in a fault's description."""


class Selection(TypedDict, total=False):
    """A selection of requests: all given keywords must match; a collection matches any of its values.

    `topic`, `partition`, `group`, `transactional_id`: the subject of the request, of at least one of its entries; a
    fault that returns an error does not affect the other entries. `version` is the API's, `connection` its number at
    the broker (`Request.connection`), `broker` the broker id. `predicate` is called last, on the broker's event loop:
    it must not block. `from_brokers` adds requests between brokers of a cluster.

    A cluster refuses the id of a broker that it does not have. A single broker accepts any, so that a test may switch
    from one broker to several: a selection for another broker matches nothing there.
    """

    version: int | Collection[int]
    client_id: str | Collection[str]
    principal: str | Collection[str]
    connection: int | Collection[int]
    topic: str | Topic | Collection[str | Topic]
    partition: int | Collection[int]
    group: str | Collection[str]
    transactional_id: str | Collection[str]
    broker: int | Collection[int]
    predicate: Callable[[Request], bool]
    from_brokers: bool


class Matching(Selection, total=False):
    """The selection of requests for a fault, see `Selection`, and its hits.

    Of the matching requests, the first `after` pass; then each `every`-th is hit, with `probability` (by a random
    number from `seed`; `repr` of the fault shows it), at most `times`.
    """

    times: int
    after: int
    every: int
    probability: float
    seed: int


_OF_REQUEST: Final = ("version", "client_id", "principal", "connection", "broker")
_NUMBERS: Final = frozenset({"version", "connection", "partition", "broker"})
_OF_ENTRIES: Final = {
    "topic": TOPIC,
    "partition": PARTITION,
    "group": GROUP,
    "transactional_id": TRANSACTIONAL_ID,
}


class Limits:
    """The limits of a fault's hits; counts matches and hits."""

    def __init__(
        self,
        *,
        times: int | None = None,
        after: int = 0,
        every: int = 1,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> None:
        _check_numbers(times=times or 0, after=after, every=every, seed=seed or 0)
        if isinstance(probability, bool) or not isinstance(probability, int | float):
            raise TypeError(f"probability is a number above 0, 1 at most, not {probability!r:.100}")
        if every < 1 or after < 0 or (times is not None and times < 1) or not 0 < probability <= 1:
            raise ValueError("a fault needs times >= 1, after >= 0, every >= 1 and a probability above 0, 1 at most")
        self.seed = random.randrange(SEED_MAX) if seed is None else seed
        self.random = random.Random(self.seed)
        self.matches = 0
        self.hits = 0
        self.times = times
        self._after = after
        self._every = every
        self._probability = probability
        self.is_random = probability < 1

    def described(self) -> list[str]:
        """The limits that differ from the defaults, in a test's notation, and the seed of random numbers."""
        told = {"times": self.times, "after": self._after, "every": self._every, "probability": self._probability}
        usual = {"times": None, "after": 0, "every": 1, "probability": 1}
        seed = [f"seed={self.seed}"] if self.is_random else []
        return [f"{name}={value}" for name, value in told.items() if value != usual[name]] + seed

    @property
    def is_over(self) -> bool:
        """Whether the fault has had its maximum of hits."""
        return self.hits == self.times

    def is_hit(self) -> bool:
        """Count one more request, connection or call that matches, and return whether it is hit."""
        if self.is_over:
            return False
        self.matches += 1
        number = self.matches - self._after
        if number < 1 or number % self._every or (self.is_random and self.random.random() >= self._probability):
            return False
        self.hits += 1
        return True


class Matcher:
    """Matches requests for a fault or a look-up in a recording. Errors: ValueError for an API that Kafka does not have,
    and for an empty collection or a negative number; TypeError for an unknown keyword, or a value of the wrong type.
    """

    def __init__(
        self, api: Api | Collection[Api] | None, where: Mapping[str, Any], others: Collection[str] = ()
    ) -> None:
        """`others` are additional keywords that the caller accepts, for error messages."""
        self.api_keys = api_keys(api)
        self._predicate: Callable[[Request], bool] | None = where.get("predicate")
        self.is_of_brokers = bool(where.get("from_brokers", False))
        self._of_request = {name: _collection(name, where[name]) for name in _OF_REQUEST if name in where}
        self._of_entries = {role: _collection(name, where[name]) for name, role in _OF_ENTRIES.items() if name in where}
        self.addressed = frozenset(self._of_entries)
        unknown = set(where) - {*_OF_REQUEST, *_OF_ENTRIES, "predicate", "from_brokers"}
        if unknown:
            raise TypeError(
                f"no such keyword: {', '.join(sorted(unknown))}; there are {', '.join((*_KEYWORDS, *others))}"
            )
        if self._predicate is not None and not callable(self._predicate):
            raise TypeError(f"predicate is a function of a Request, not {self._predicate!r:.100}")

    @property
    def brokers(self) -> Collection[int]:
        """The selected broker ids; empty if all are."""
        return self._of_request.get("broker", ())

    def check_can_match(self) -> None:
        """Refuse a selection that no request can match. Errors: ValueError."""
        served = {*served_apis(), *apis_between_brokers()}
        known = [messages_of(key) for key in sorted(served if self.api_keys is None else served & self.api_keys)]
        if not known:
            named = ", ".join(API_NAMES[key] for key in sorted(self.api_keys or ()))
            raise ValueError(f"no broker here serves {named}: ApiVersions omits it, so that clients do not send it")
        told = ", ".join(each.name for each in known) if self.api_keys is not None else "any API"
        if not self.is_of_brokers and all(each.key in BETWEEN_BROKERS for each in known):
            raise ValueError(f"only brokers of a cluster send {told}, to each other: add from_brokers=True")
        keywords = [name for name, role in _OF_ENTRIES.items() if role in self._of_entries]
        about = [entries.askable(each) for each in known] if keywords else []
        if keywords and not any(self.addressed <= roles for roles in about):
            lacking = [name for name in keywords if not any(_OF_ENTRIES[name] in roles for roles in about)]
            what = " or ".join(lacking) or f"{' and '.join(keywords)} at once"
            raise ValueError(f"no request of {told} has {what}: leave that out, or name an API that has it")
        if versions := self._of_request.get("version"):
            ranges = {each.name: each.request_class.VALID_VERSIONS for each in known}
            if not any(low <= version <= high for low, high in ranges.values() for version in versions):
                there_are = ", ".join(f"{name} {low} to {high}" for name, (low, high) in ranges.items())
                known_ones = "" if self.api_keys is None else f": there are {there_are}"
                raise ValueError(f"no request of {told} has the version {_described(versions)}{known_ones}")

    def described(self) -> list[str]:
        """The selection besides the API, in a test's notation."""
        of_entries = {name: self._of_entries[role] for name, role in _OF_ENTRIES.items() if role in self._of_entries}
        told = [f"{name}={_described(values)}" for name, values in (of_entries | self._of_request).items()]
        if self._predicate is not None:
            told.append(f"predicate={getattr(self._predicate, '__name__', self._predicate)}")
        return told + ["from_brokers=True"] * self.is_of_brokers

    def is_asked(self, request: Request) -> bool:
        """Whether this is a request of the API, regardless of the other keywords."""
        is_of_api = self.api_keys is None or request.message.API_KEY in self.api_keys
        return is_of_api and (self.is_of_brokers or not request.is_of_broker)

    def matches(self, request: Request) -> bool:
        """Whether this request matches; calls the predicate last."""
        return (
            self.is_asked(request)
            and all(getattr(request, name) in values for name, values in self._of_request.items())
            and (not self._of_entries or any(map(self._names, request.subjects)))
            and (self._predicate is None or bool(self._predicate(request)))
        )

    def names(self, subject: entries.Subject) -> bool:
        """Whether an entry of a matching request is selected, if not all are."""
        return not self._of_entries or self._names(subject)

    def is_at(self, broker: int) -> bool:
        """Whether requests at a broker are selected."""
        return broker in self._of_request.get("broker", (broker,))

    def is_meant(self, subject: entries.Subject) -> bool:
        """Whether an entry of a matching request, or of its response, is selected, as far as its fields show."""
        return all(role not in subject or subject[role] in values for role, values in self._of_entries.items())

    def _names(self, subject: entries.Subject) -> bool:
        told = set(subject)
        if entries.ALL_TOPICS in subject:
            told |= {TOPIC, PARTITION}
        if entries.ALL_PARTITIONS in subject:
            told.add(PARTITION)
        return self.addressed <= told and self.is_meant(subject)


_KEYWORDS: Final = tuple(Matching.__annotations__)


def api_keys(api: Api | Collection[Api] | None) -> frozenset[int] | None:
    """The keys of APIs, from any of their notations; None for all. Errors: ValueError, with the closest name, and for
    an empty collection.
    """
    if api is None:
        return None
    if isinstance(api, str | int | type):
        return frozenset({_api_key(api)})
    keys = frozenset(map(_api_key, api))
    if not keys:
        raise ValueError("no API is named: name one, or leave it out (None) where all are meant")
    return keys


def _api_key(api: Api) -> int:
    if isinstance(api, type):
        return api.API_KEY
    if isinstance(api, int):
        if api in API_NAMES:
            return api
        raise ValueError(f"Kafka has no API with the key {api}")
    found = next((key for key, name in API_NAMES.items() if name == api), None)
    if found is None:
        near = difflib.get_close_matches(api, API_NAMES.values(), 1)
        raise ValueError(f"Kafka has no API {api!r}{f': did you mean {near[0]!r}?' if near else ''}")
    return found


def _described(values: Collection[Any]) -> str:
    told = [repr(value) for value in sorted(values, key=lambda value: (value is None, value))]
    if len(told) == 1:
        return told[0]
    return f"{{{', '.join(told[:VALUES_TOLD_MAX])}{', ...' if len(told) > VALUES_TOLD_MAX else ''}}}"


def _collection(keyword: str, value: Any) -> Collection[Any]:
    """The values of a keyword, which may be one or several. Errors: TypeError; ValueError for none."""
    is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    values = frozenset(_value(keyword, each) for each in ([value] if is_one else value))
    if not values:
        raise ValueError(f"{keyword} is empty, so it matches no request: leave it out to match any")
    return values


def _value(keyword: str, value: Any) -> Any:
    if keyword in _NUMBERS:
        check_count(keyword, value, 0)
        return value
    if keyword == "topic":
        return topic_name(value)
    if isinstance(value, str) or (keyword == "client_id" and value is None):  # the client id is optional
        return value
    raise TypeError(f"{keyword} is a text, not {value!r:.100}")


def _check_numbers(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is a whole number, not {value!r:.100}")
