"""A small Kafka client for the command line: metadata, and routing of requests to connections.

It works with any Kafka-compatible broker. Everything is bounded: response sizes, waiting times, retries. Errors are
`ClientError`s with a text for the user at the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.client.connection import ANSWER_S, BrokerConnection
from barnabas.broker.client.errors import BrokerUnavailable, ClientError, OtherMechanism, ResponseError, check
from barnabas.broker.client.patience import Patience
from barnabas.broker.client.permissions import Refusals
from barnabas.broker.client.security import PLAINTEXT, Security, UserLogin
from barnabas.broker.configuration.config import parse_address
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    import ssl

RETRY_BACKOFF_S: Final = 0.1
SETUP_S: Final = 10.0
"""The timeout of connecting to one address, and then of its first response, while there are others to be tried; Kafka's
socket.connection.setup.timeout.ms."""

DEFAULT_PORT: Final = 9092

GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1


def no_partition(topic: str, missing: Iterable[int], count: int) -> str:
    """The message that a topic of `count` partitions lacks some."""
    there = "the only one is 0" if count == 1 else f"they are 0 to {count - 1}"
    return f"{topic} has no partition {', '.join(map(str, sorted(missing)))}: {there}"


def similar(name: str, others: Collection[str]) -> list[str]:
    """The other name that is most similar to this one, in a list, or none."""
    import difflib  # commands that succeed need not load it

    return difflib.get_close_matches(name, others, n=1)


def parse_bootstrap_servers(text: str) -> list[tuple[str, int]]:
    """Parse HOST[:PORT],... as in clients. Errors: ClientError."""
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        bare = entry if ":" in entry.rpartition("]")[2] else f"{entry}:{DEFAULT_PORT}"
        try:
            host, port = parse_address(bare)
        except ValueError as error:
            raise ClientError(f"bootstrap server {error}") from error
        addresses.append((host or "localhost", port))
    if not addresses:
        raise ClientError("no bootstrap server given: expected HOST:PORT[,HOST:PORT...]")
    return addresses


def _is_of_no_controller(response: Any) -> bool:
    entries = [entry for name in ("topics", "results", "responses") for entry in getattr(response, name, ())]
    return any(getattr(each, "error_code", 0) == ErrorCode.NOT_CONTROLLER for each in (response, *entries))


class KafkaClient:
    """A cluster: the addresses of its brokers, and its controller; use it as `async with KafkaClient("HOST:PORT") as
    client`.

    Owned by one task; parts of the command may run in tasks of their own, as nothing here waits while it changes state.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "barnabas-cli",
        request_timeout_s: float = 30.0,
        setup_timeout_s: float = SETUP_S,
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._client_id = client_id
        self._timeout_s = request_timeout_s
        self._setup_timeout_s = setup_timeout_s
        self._security = security
        self._tls_context = _context(security)
        self.refusals = Refusals()
        self._connections: dict[int | None, BrokerConnection] = {}
        self._stale: list[BrokerConnection] = []
        """Replaced connections with requests in flight."""
        self._opening: dict[int | None, asyncio.Lock] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1

    async def __aenter__(self) -> KafkaClient:
        try:
            await self.metadata([])
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for connection in [*self._connections.values(), *self._stale]:
            await connection.close()

    async def send(
        self, request: Message, node_id: int | None = None, *, max_version: int | None = None, wait_s: float = 0.0
    ) -> Any:
        """The response of broker `node_id`, or of any broker. Errors: ClientError."""
        connection = await self._connection(node_id)
        return await connection.send(request, max_version=max_version, wait_s=wait_s)

    async def send_to_controller(self, request: Message, *, wait_s: float = 0.0, may_repeat: bool = True) -> Any:
        """The response of the controller, or of any broker if no controller is known. Errors: ClientError.

        If the controller is unavailable, or has changed, it is looked up again. Without `may_repeat` the request is not
        repeated once it was sent and the connection broke: it may have been carried out, and a second one would fail
        for that reason.
        """
        patience = Patience(self._timeout_s)
        while True:
            was_sent = False
            try:
                known = self.controller_id in self._addresses
                connection = await self._connection(self.controller_id if known else None)
                was_sent = True
                response = await connection.send(request, wait_s=wait_s)
                if patience.is_over or not _is_of_no_controller(response):
                    return response
                problem: ClientError = ResponseError(ErrorCode.NOT_CONTROLLER, f"the broker at {connection.address}")
            except BrokerUnavailable as error:
                if was_sent and not may_repeat:
                    raise
                problem = error
            await patience.after(problem)
            with contextlib.suppress(BrokerUnavailable):
                await self.metadata([])

    async def supports(self, request_class: type[Message], version: int, node_id: int | None = None) -> bool:
        """Whether requests of this class would be sent in `version` or a newer one. Errors: ClientError."""
        return (await self._connection(node_id)).version_of(request_class) >= version

    def node_ids(self) -> list[int]:
        """The brokers in the last metadata."""
        return sorted(self._addresses)

    async def metadata(
        self, topics: Collection[str] | None, *, allow_auto_topic_creation: bool = False
    ) -> MetadataResponse:
        """The metadata of the cluster and of `topics` (None: all of them). Errors: ClientError."""
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        response: MetadataResponse = await self.send(request)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        return response

    async def check_topic(self, name: str, code: int) -> None:
        """Raise ResponseError unless `code` is 0; for a missing topic it suggests a similar name."""
        message = None
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            message = "There is no topic of this name"
            with contextlib.suppress(ClientError):
                others = [topic.name or "" for topic in (await self.metadata(None)).topics]
                message += "".join(f"; did you mean {other}?" for other in similar(name, others))
        check(code, f"topic {name}", message)

    async def coordinator(self, key: str, key_type: int = GROUP_COORDINATOR, *, timeout_s: float | None = None) -> int:
        """The coordinator of a consumer group, or a transactional id; waits for it to be elected, by default for the
        timeout of requests. Errors: ClientError.
        """
        deadline = asyncio.get_running_loop().time() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            request = FindCoordinatorRequest(key=key, coordinator_keys=[key], key_type=key_type)
            connection = await self._connection(None)
            version = connection.version_of(FindCoordinatorRequest)
            if version >= 4:
                request.key = ""
            else:
                request.coordinator_keys = []
            response: FindCoordinatorResponse = await connection.send(request)
            found = response.coordinators[0] if version >= 4 else response
            if not found.error_code:
                self._addresses[found.node_id] = (found.host, found.port)
                return found.node_id
            error = ErrorCode.of(found.error_code)
            if not error.retriable or asyncio.get_running_loop().time() >= deadline:
                what = "group" if key_type == GROUP_COORDINATOR else "transactional id"
                raise ResponseError(error, f"cannot find the coordinator of {what} {key}", found.error_message)
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def _connection(self, node_id: int | None) -> BrokerConnection:
        # One task opens, the others wait for it: two connections to a broker could reorder requests.
        async with self._opening.setdefault(node_id, asyncio.Lock()):
            connection = self._connections.get(node_id)
            if connection is not None and connection.is_open:
                if not connection.is_stale:
                    return connection
                await self._retire(connection)
            addresses = self._bootstrap + list(self._addresses.values())
            if node_id is not None:
                if node_id not in self._addresses:
                    raise BrokerUnavailable(f"broker {node_id} is not part of the cluster at the moment")
                addresses = [self._addresses[node_id]]
            connection = await self._open_one_of(addresses)
            self._connections[node_id] = connection
            return connection

    async def _retire(self, connection: BrokerConnection) -> None:
        """Keep a replaced connection until the responses of its requests have come."""
        self._stale.append(connection)
        for each in [each for each in self._stale if each.is_idle]:
            self._stale.remove(each)
            await each.close()

    async def _open_one_of(self, addresses: Sequence[tuple[str, int]]) -> BrokerConnection:
        failures = []
        different = dict.fromkeys(addresses)
        limit_s = self._setup_timeout_s if len(different) > 1 else None
        for host, port in different:
            connection = self._new_connection(host, port)
            try:
                await connection.open(limit_s)
            except OtherMechanism as other:
                await connection.close()
                assert isinstance(self._security.login, UserLogin)
                login = replace(self._security.login, mechanism=other.mechanism, may_weaken=True)
                self._security = replace(self._security, login=login)
                return await self._open_one_of(addresses)
            except BrokerUnavailable as error:
                await connection.close()
                failures.append(str(error))
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
        raise BrokerUnavailable("; ".join(failures))

    def _new_connection(self, host: str, port: int) -> BrokerConnection:
        return BrokerConnection(
            host,
            port,
            self._client_id,
            self._timeout_s,
            security=self._security,
            tls_context=self._tls_context,
            refusals=self.refusals,
        )


def _context(security: Security) -> ssl.SSLContext | None:
    """The context of TLS, if there is any. Errors: ClientError."""
    if security.tls is None:
        return None
    from barnabas.broker.client.tls import client_context

    return client_context(security.tls)


__all__ = [
    "ANSWER_S",
    "RETRY_BACKOFF_S",
    "TRANSACTION_COORDINATOR",
    "BrokerConnection",
    "BrokerUnavailable",
    "ClientError",
    "KafkaClient",
    "ResponseError",
    "check",
    "no_partition",
    "parse_bootstrap_servers",
    "similar",
]
