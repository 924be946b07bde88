"""The effect of each request of a session on the tree, and its response. One request is served at a time, from reading
it to the events that it causes: so every client is notified of a change before it can read it.

A write is durable before its response. ACLs permit what they permit in ZooKeeper; who a client is belongs to its
connection (`authentication`). Containers, TTLs and persistent watches are refused with Unimplemented.

*Source*: ZooKeeper's `PrepRequestProcessor.java`, `FinalRequestProcessor.java`, `DataTree.java` (`processTxn`).
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from barnabas.controller.coordination.access import Access, NoAuth, visible_to
from barnabas.controller.coordination.acl import ADMIN, READ
from barnabas.controller.coordination.interface import (
    CoordinationError,
    Create,
    Delete,
    EventType,
    NoNode,
    Operation,
    Stat,
    StoreUnavailable,
    WatchedEvent,
)
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.tree import BadArguments, Change, SetAcl, Transaction, Znode, stat_of
from barnabas.controller.coordination.zookeeper_server.authentication import Authentication, AuthFailed, ClientLogins
from barnabas.controller.coordination.zookeeper_server.jute import (
    JuteReader,
    MalformedMessage,
    encode_buffer,
    encode_int,
    encode_null,
    encode_stat,
    encode_string,
    encode_vector,
)
from barnabas.controller.coordination.zookeeper_server.messages import (
    Auth,
    Body,
    ErrorCode,
    Multi,
    MultiRead,
    OpCode,
    Path,
    Read,
    Sasl,
    SetAclRequest,
    SetWatches,
    UnsupportedRequest,
    Watches,
    WatchKind,
    Write,
    encode_acls,
    error_code,
    multi_failure,
    multi_response,
    read_body,
    reply,
    watch_event,
    write_result,
)
from barnabas.controller.coordination.zookeeper_server.sessions import Session
from barnabas.controller.coordination.zookeeper_server.watches import WatchTable, missed_event

logger = logging.getLogger(__name__)

WATCHES_BYTES_MAX: Final = 256 * 1024 * 1024
"""The maximum memory of all connections' watches: more than 700,000 watches. A cluster's controller has one per topic.
"""

WATCHES_PER_TURN: Final = 100
"""The number of watches that are set or dropped before others have a turn: a millisecond or two."""

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""The maximum response size of several reads in one request: a short request may read large znodes."""

EPHEMERALS_MAX: Final = 1_000
"""The maximum number of ephemeral znodes of a session: they are deleted in one transaction, which takes tens of
milliseconds. A broker has two. (ZooKeeper ends a session in one transaction, too, and bounds the bytes of their paths
if `zookeeper.ephemeralNodes.total.byte.limit` is set.)
"""


class Client(Protocol):
    """A connection: the receiver of responses and events. `logins` is who its client is."""

    logins: ClientLogins

    def send(self, message: bytes, /) -> None:
        """Send one message, after all that were sent before."""
        ...


class NoWatcher(Exception):
    """The connection has no such watch."""


class TooManyEphemerals(CoordinationError):
    """A session has reached its maximum of ephemeral znodes. The protocol has no error code for that."""


class LastRequest(Exception):
    """The connection has to be closed after the response, if there is one."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__()
        self.answer = answer


InPieces: TypeAlias = Generator[None, None, bytes]
"""A request that is served in several turns, and returns its response."""

_CODES: Final[Mapping[type[Exception], ErrorCode]] = {
    UnsupportedRequest: ErrorCode.UNIMPLEMENTED,
    NoWatcher: ErrorCode.NO_WATCHER,
}
_REFUSALS: Final = (MalformedMessage, UnsupportedRequest, NoWatcher, CoordinationError, ValueError)
"""Errors of a request."""


class TreeService:
    """The tree for clients. `on_close` is called with a session that its client wants to end; `authentication` knows
    the logins."""

    def __init__(
        self, stored: StoredTree, on_close: Callable[[Session[Client]], None], authentication: Authentication
    ) -> None:
        self._stored = stored
        self._authentication = authentication
        self._on_close = on_close
        self._watches = WatchTable[Client]()
        self._watches_bytes_max = WATCHES_BYTES_MAX
        self.ephemerals_max = EPHEMERALS_MAX

    def serve(self, session: Session[Client], client: Client, frame: bytes) -> bytes | InPieces:
        """The response to one request of a client in its session.

        Raises: MalformedMessage if there is not even a header; LastRequest, also in pieces.
        """
        reader = JuteReader(frame)
        xid, number = reader.read_int(), reader.read_int()
        body: bytes | Iterator[None] = b""
        try:
            op_code = _op_code(number)
            if op_code in (OpCode.AUTH, OpCode.SASL):
                return self._log_in(xid, read_body(op_code, reader), client)
            if op_code is OpCode.CLOSE_SESSION:
                self._on_close(session)
                raise LastRequest(reply(xid, self._stored.last_zxid))
            if op_code is not OpCode.PING:
                self._stored.require_no_failure()
                body = self._answer(op_code, read_body(op_code, reader), session, client)
        except _REFUSALS as error:
            return self._refusal(xid, number, error)
        if isinstance(body, bytes):
            return reply(xid, self._stored.last_zxid, body=body)
        return self._in_pieces(xid, number, body)

    def _log_in(self, xid: int, body: Body, client: Client) -> bytes:
        """Raises: LastRequest, if the login is refused."""
        try:
            if isinstance(body, Auth):
                self._authentication.log_in(client.logins, body.scheme, body.credentials)
                return reply(xid, 0)
            assert isinstance(body, Sasl), "nothing else is a login"
            token = self._authentication.negotiate(client.logins, body.token)
        except AuthFailed as error:
            logger.warning("a login of %s is refused", _address_of(client))
            answer = encode_null() if isinstance(body, Sasl) else b""
            raise LastRequest(reply(xid, 0, ErrorCode.AUTH_FAILED, answer)) from error
        return reply(xid, 0, body=encode_null() if token is None else encode_buffer(token))

    def _in_pieces(self, xid: int, number: int, work: Iterator[None]) -> InPieces:
        try:
            yield from work
        except _REFUSALS as error:
            return self._refusal(xid, number, error)
        return reply(xid, self._stored.last_zxid)

    def _refusal(self, xid: int, number: int, error: Exception) -> bytes:
        """The response to a failed request. Raises: LastRequest if the request cannot be read."""
        if isinstance(error, MalformedMessage):
            logger.info("a request of type %d cannot be read: %s", number, error)
            raise LastRequest(reply(xid, self._stored.last_zxid, ErrorCode.MARSHALLING_ERROR)) from error
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
        return reply(xid, self._stored.last_zxid, error_code(error) if code is None else code)

    def forget(self, client: Client) -> None:
        """The connection is closed; `forget_some` drops its watches."""
        self._watches.forget(client)

    def forget_some(self) -> bool:
        """Drop as many watches of closed connections as fit into a turn; returns whether there are more."""
        return self._watches.forget_some(WATCHES_PER_TURN)

    def ephemeral_count(self, session_id: int) -> int:
        """The number of a session's ephemeral znodes."""
        return self._stored.tree.ephemeral_count(session_id)

    def delete_ephemerals(self, session_id: int) -> None:
        """Delete a session's ephemeral znodes.

        Raises: StoreUnavailable.
        """
        ephemerals = self._stored.tree.ephemerals(session_id)
        if ephemerals:
            self._change([Delete(path) for path in ephemerals], session_id)

    def _answer(self, op_code: OpCode, body: Body, session: Session[Client], client: Client) -> bytes | Iterator[None]:
        if isinstance(body, Write):
            return self._write(op_code, body, session, client)
        if isinstance(body, Multi):
            return self._multi(body, session, client)
        if isinstance(body, Read):
            return self._read(op_code, body, client)
        if isinstance(body, MultiRead):
            return self._multi_read(body, client)
        if isinstance(body, SetWatches):
            return self._set_watches(body, client)
        if isinstance(body, Watches):
            self._check_watches(op_code, body, client)
        elif isinstance(body, SetAclRequest):
            return self._set_acl(body, session, client)
        elif isinstance(body, Path):
            return _QUESTIONS[op_code](self, body.path, session, client)
        return b""

    # -- reading

    def _read(self, op_code: OpCode, body: Read, client: Client) -> bytes:
        tree, path = self._stored.tree, body.path
        found, znode = tree.get(path), tree.znode(path)
        if znode is not None:
            _access(client).check(znode.acl, READ, path)
        if body.watch and (found is not None or op_code is OpCode.EXISTS):
            self._require_room()
            if op_code in (OpCode.EXISTS, OpCode.GET_DATA):
                self._watches.watch_data(path, client)
            else:
                self._watches.watch_children(path, client)
        if found is None:
            raise NoNode(path)
        data, stat = found
        if op_code is OpCode.EXISTS:
            return encode_stat(stat)
        if op_code is OpCode.GET_DATA:
            return encode_int(len(data)) + data + encode_stat(stat)
        names = encode_vector(encode_string(name) for name in tree.children(path) or ())
        return names + encode_stat(stat) if op_code is OpCode.GET_CHILDREN2 else names

    def _multi_read(self, body: MultiRead, client: Client) -> bytes:
        """Serve each read separately: a missing znode does not fail the others (ZOOKEEPER-1407)."""
        results: list[tuple[OpCode, bytes] | ErrorCode] = []
        size = 0
        for op_code, read in body.reads:
            if read.watch:
                raise UnsupportedRequest("a watch in a request of several reads")
            try:
                answer = self._read(op_code, read, client)
            except (NoNode, NoAuth) as error:
                results.append(error_code(error))
                continue
            size += len(answer)
            if size > ANSWER_BYTES_MAX:
                raise UnsupportedRequest("the response is too large")
            results.append((op_code, answer))
        return multi_response(results)

    def _require(self, path: str) -> Znode:
        found = self._stored.tree.znode(path)
        if found is None:
            raise NoNode(path)
        return found

    def _get_acl(self, path: str, _session: Session[Client], client: Client) -> bytes:
        znode = self._require(path)
        _access(client).check(znode.acl, READ | ADMIN, path)
        stat = stat_of(znode, self._stored.tree.child_count(path))
        return encode_acls(visible_to(znode.acl, client.logins.identities)) + encode_stat(stat)

    def _sync(self, path: str, _session: Session[Client], _client: Client) -> bytes:
        """Respond to SYNC at once: there is only one server, and its clients have seen everything before."""
        return encode_string(path)

    def _ephemerals(self, prefix: str, session: Session[Client], _client: Client) -> bytes:
        paths = self._stored.tree.ephemerals(session.session_id)
        return encode_vector(encode_string(path) for path in paths if path.startswith(prefix))

    def _all_children_number(self, path: str, _session: Session[Client], client: Client) -> bytes:
        _access(client).check(self._require(path).acl, READ, path)
        return encode_int(self._stored.tree.descendant_count(path))

    # -- writing

    def _write(self, op_code: OpCode, body: Write, session: Session[Client], client: Client) -> bytes:
        if op_code is OpCode.CHECK:
            raise UnsupportedRequest("a check outside a transaction")
        self._require_few_ephemerals([body.operation], session.session_id)
        transaction = self._change([body.operation], session.session_id, _access(client, [body]))
        return self._result(op_code, body.operation, transaction, 0)

    def _multi(self, body: Multi, session: Session[Client], client: Client) -> bytes:
        writes = [write for _, write in body.writes]
        try:
            operations = [write.operation for write in writes]
            self._require_few_ephemerals(operations, session.session_id)
            transaction = self._change(operations, session.session_id, _access(client, writes))
        except StoreUnavailable:
            raise
        except (CoordinationError, BadArguments) as error:
            return multi_failure(len(writes), error.operation_index or 0, error_code(error))
        return multi_response(
            [
                (op_code, self._result(op_code, write.operation, transaction, index))
                for index, (op_code, write) in enumerate(body.writes)
            ]
        )

    def _set_acl(self, body: SetAclRequest, session: Session[Client], client: Client) -> bytes:
        operation = SetAcl(body.path, body.acls, body.version)
        (stat,) = self._change([operation], session.session_id, _access(client)).results
        assert isinstance(stat, Stat), "the result of a changed ACL"
        return encode_stat(stat)

    @staticmethod
    def _result(op_code: OpCode, operation: Operation, transaction: Transaction, index: int) -> bytes:
        """The response of one operation: its own result for its znode, whatever later operations did to that."""
        result = transaction.results[index]
        if not isinstance(operation, Create):
            return write_result(op_code, operation.path, result if isinstance(result, Stat) else None)
        assert isinstance(result, str), "the result of a creation is its path"
        return write_result(op_code, result, stat_of(transaction.created[index], 0))

    def _change(self, operations: Sequence[Change], session_id: int, access: Access | None = None) -> Transaction:
        """Make a transaction durable, then visible, then notify watchers."""
        transaction = self._stored.change(operations, session_id, access)
        for event in transaction.events:
            listeners = self._watches.take(event)
            if listeners:
                message = watch_event(event)
                for client in listeners:
                    client.send(message)
        return transaction

    def _require_few_ephemerals(self, operations: Sequence[Operation], session_id: int) -> None:
        """Count created ephemeral znodes, ignoring deletions. Raises: TooManyEphemerals."""
        count = self.ephemeral_count(session_id)
        for index, operation in enumerate(operations):
            if isinstance(operation, Create) and operation.ephemeral:
                count += 1
                if count > self.ephemerals_max:
                    error = TooManyEphemerals(operation.path)
                    error.operation_index = index
                    raise error

    # -- watches

    def _set_watches(self, body: SetWatches, client: Client) -> Iterator[None]:
        """Restore the watches that a client had before it reconnected, and send it the events that it missed.

        Other connections may have turns in between: watches that are not restored yet miss their changes, restored ones
        report them.
        """
        for count, (kind, path) in enumerate(body.watches, 1):
            if kind in (WatchKind.PERSISTENT, WatchKind.PERSISTENT_RECURSIVE):
                raise UnsupportedRequest("persistent watches")
            self._watch_or_tell(client, kind, path, missed_event(self._stored.tree, body.relative_zxid, kind, path))
            if count % WATCHES_PER_TURN == 0:
                yield

    def _watch_or_tell(self, client: Client, kind: WatchKind, path: str, missed: EventType | None) -> None:
        if missed is not None:
            client.send(watch_event(WatchedEvent(missed, path)))
            return
        self._require_room()
        if kind is WatchKind.CHILDREN:
            self._watches.watch_children(path, client)
        else:
            self._watches.watch_data(path, client)

    def _check_watches(self, op_code: OpCode, body: Watches, client: Client) -> None:
        kinds = {"of_data": body.of_data, "of_children": body.of_children}
        if not self._watches.has(body.path, client, **kinds):
            raise NoWatcher
        if op_code is OpCode.REMOVE_WATCHES:
            self._watches.remove(body.path, client, **kinds)

    def _require_room(self) -> None:
        if self._watches.held_bytes >= self._watches_bytes_max:
            raise LastRequest


_QUESTIONS: Final[Mapping[OpCode, Callable[[TreeService, str, Session[Client], Client], bytes]]] = {
    OpCode.GET_ACL: TreeService._get_acl,
    OpCode.SYNC: TreeService._sync,
    OpCode.GET_EPHEMERALS: TreeService._ephemerals,
    OpCode.GET_ALL_CHILDREN_NUMBER: TreeService._all_children_number,
}


def _op_code(number: int) -> OpCode:
    try:
        return OpCode(number)
    except ValueError:
        raise UnsupportedRequest(f"a request of type {number}") from None


def _access(client: Client, writes: Sequence[Write] = ()) -> Access:
    """Who a client is, and the ACLs that its creations ask for."""
    return Access(client.logins.identities, {index: write.acls for index, write in enumerate(writes)})


def _address_of(client: Client) -> str:
    return next((each.name for each in client.logins.identities if each.scheme == "ip"), "a client")
