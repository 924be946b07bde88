"""ZooKeeper's protocol as values: the requests of clients, their decoding, and the encoding of responses.

A frame is a signed 32-bit length and as many bytes. The first one of a connection is a `ConnectRequest`; each later one
is a header (xid, type) and the body of that type. A response is a header (xid, zxid, error), and a body unless there
was an error. Watch events come between responses, with `WATCH_XID`.

*Source*: `zookeeper.jute`, `ZooDefs.java`, `KeeperException.java`, `MultiOperationRecord.java`, `MultiResponse.java`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

from barnabas.controller.coordination.access import InvalidAcl, NoAuth
from barnabas.controller.coordination.acl import WORLD_ANYONE, Acl
from barnabas.controller.coordination.interface import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    QuotaExceeded,
    SetData,
    Stat,
    WatchedEvent,
)
from barnabas.controller.coordination.zookeeper_server.jute import (
    JuteReader,
    encode_boolean,
    encode_buffer,
    encode_int,
    encode_long,
    encode_stat,
    encode_string,
)

T = TypeVar("T")

FRAME_BYTES_MAX: Final = 1024 * 1024 - 1
"""ZooKeeper's default `jute.maxbuffer`: a client that sends a longer frame loses the connection."""

PASSWORD_BYTES: Final = 16

WATCH_XID: Final = -1
_SYNC_CONNECTED: Final = 3


class OpCode(IntEnum):
    """The request types."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    CLOSE_SESSION = -11


class ErrorCode(IntEnum):
    """The error codes in a response header."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    QUOTA_EXCEEDED = -125


_ERRORS: Final[Mapping[type[CoordinationError], ErrorCode]] = {
    NoAuth: ErrorCode.NO_AUTH,
    InvalidAcl: ErrorCode.INVALID_ACL,
    NoNode: ErrorCode.NO_NODE,
    NodeExists: ErrorCode.NODE_EXISTS,
    BadVersion: ErrorCode.BAD_VERSION,
    NotEmpty: ErrorCode.NOT_EMPTY,
    NoChildrenForEphemerals: ErrorCode.NO_CHILDREN_FOR_EPHEMERALS,
    QuotaExceeded: ErrorCode.QUOTA_EXCEEDED,
}

_EVENT_TYPES: Final = {
    EventType.CREATED: 1,
    EventType.DELETED: 2,
    EventType.DATA_CHANGED: 3,
    EventType.CHILDREN_CHANGED: 4,
}

OPERATIONS_MAX: Final = 10_000
"""The maximum number of writes, or reads, in one request: no other request is served during them, 20 us each. A
controller of ours writes half as many (`TRANSACTION_BYTES_MAX` of `controller/plan.py`), one of Kafka's two.
"""

_END_OF_MULTI: Final = encode_int(-1) + encode_boolean(True) + encode_int(-1)
_ERROR_RESULT: Final = -1


def error_code(error: Exception) -> ErrorCode:
    """The error code for a failed operation. An invalid path or size is a ValueError."""
    if isinstance(error, ValueError):
        return ErrorCode.BAD_ARGUMENTS
    return next((code for kind, code in _ERRORS.items() if isinstance(error, kind)), ErrorCode.SYSTEM_ERROR)


class ConnectRequest(NamedTuple):
    """A client's first message. `session_id` is 0 for a new session."""

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes
    knows_read_only: bool


def read_connect_request(frame: bytes) -> ConnectRequest:
    """Decode the first request of a connection. Raises: MalformedMessage."""
    reader = JuteReader(frame)
    reader.read_int()  # the protocol's version, always 0
    last_zxid_seen, timeout_ms, session_id, password = (
        reader.read_long(),
        reader.read_int(),
        reader.read_long(),
        reader.read_buffer(),
    )
    # The last field came with ZooKeeper 3.4; a client that does not send it does not expect it in the response.
    knows_read_only = not reader.is_at_end
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, knows_read_only)


def connect_response(request: ConnectRequest, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """The response to a `ConnectRequest`; a timeout of 0 says that the session has expired."""
    body = encode_int(0) + encode_int(timeout_ms) + encode_long(session_id) + encode_buffer(password)
    return body + encode_boolean(False) if request.knows_read_only else body


def reply(xid: int, zxid: int, error: int = ErrorCode.OK, body: bytes = b"") -> bytes:
    """A response."""
    return encode_int(xid) + encode_long(zxid) + encode_int(error) + body


def watch_event(event: WatchedEvent) -> bytes:
    """A watch event for a client."""
    body = encode_int(_EVENT_TYPES[event.type]) + encode_int(_SYNC_CONNECTED) + encode_string(event.path)
    return reply(WATCH_XID, -1, body=body)


# -- the bodies of requests


class Path(NamedTuple):
    """The body of SYNC, GET_ACL, GET_EPHEMERALS (a path prefix) and GET_ALL_CHILDREN_NUMBER."""

    path: str


class Read(NamedTuple):
    """The body of EXISTS, GET_DATA, GET_CHILDREN and GET_CHILDREN2."""

    path: str
    watch: bool


class Write(NamedTuple):
    """The body of CREATE, CREATE2, DELETE and SET_DATA: the operation and, for a creation, its ACLs."""

    operation: Operation
    acls: Sequence[Acl] = (WORLD_ANYONE,)


class SetAclRequest(NamedTuple):
    """The body of SET_ACL."""

    path: str
    acls: Sequence[Acl]
    version: int


class Multi(NamedTuple):
    """The body of MULTI: writes, each with its type."""

    writes: Sequence[tuple[OpCode, Write]]


class MultiRead(NamedTuple):
    """The body of MULTI_READ: reads, each with its type."""

    reads: Sequence[tuple[OpCode, Read]]


class WatchKind(Enum):
    """The type of a watch, in the order of SET_WATCHES2."""

    DATA = 0
    CREATION = 1
    CHILDREN = 2
    PERSISTENT = 3
    PERSISTENT_RECURSIVE = 4


class SetWatches(NamedTuple):
    """The body of SET_WATCHES and SET_WATCHES2: the newest zxid that a client knew before it reconnected, and its
    watches. There may be 200,000; they are read one by one, which raises MalformedMessage.
    """

    relative_zxid: int
    watches: Iterator[tuple[WatchKind, str]]


class Watches(NamedTuple):
    """The body of CHECK_WATCHES and REMOVE_WATCHES."""

    path: str
    of_children: bool
    of_data: bool


class Auth(NamedTuple):
    """The body of AUTH: a scheme, and what it needs (`digest`: user:password)."""

    scheme: str
    credentials: bytes

    def __repr__(self) -> str:
        return f"Auth({self.scheme})"


class Sasl(NamedTuple):
    """The body of SASL: a message of the client's mechanism; empty at first."""

    token: bytes

    def __repr__(self) -> str:
        return "Sasl"


class Nothing(NamedTuple):
    """The body of PING and CLOSE_SESSION."""


Body = Path | Read | Write | SetAclRequest | Auth | Sasl | Multi | MultiRead | SetWatches | Watches | Nothing


class UnsupportedRequest(Exception):
    """A request of a type, or with a flag, that is not supported."""


_CREATE_MODES: Final = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}
"""(ephemeral, sequence). Higher modes (containers, TTLs) are not supported."""


def read_body(op_code: OpCode, reader: JuteReader) -> Body:
    """The body of a request of this type.

    Raises: MalformedMessage, UnsupportedRequest.
    """
    return _BODIES[op_code](reader)


def _read_path(reader: JuteReader) -> Path:
    return Path(reader.read_string())


def _read_read(reader: JuteReader) -> Read:
    return Read(reader.read_string(), reader.read_boolean())


def _read_create(reader: JuteReader) -> Write:
    path, data, acls, flags = reader.read_string(), reader.read_buffer(), _read_acls(reader), reader.read_int()
    if flags not in _CREATE_MODES:
        raise UnsupportedRequest(f"a znode of mode {flags}")
    ephemeral, sequence = _CREATE_MODES[flags]
    return Write(Create(path, data, ephemeral=ephemeral, sequence=sequence), acls)


def _read_delete(reader: JuteReader) -> Write:
    return Write(Delete(reader.read_string(), reader.read_int()))


def _read_set_data(reader: JuteReader) -> Write:
    return Write(SetData(reader.read_string(), reader.read_buffer(), reader.read_int()))


def _read_check(reader: JuteReader) -> Write:
    return Write(Check(reader.read_string(), reader.read_int()))


def _read_set_acl(reader: JuteReader) -> SetAclRequest:
    return SetAclRequest(reader.read_string(), _read_acls(reader), reader.read_int())


def _read_auth(reader: JuteReader) -> Auth:
    reader.read_int()  # a type, which has no meaning
    return Auth(reader.read_string(), reader.read_buffer())


def _read_sasl(reader: JuteReader) -> Sasl:
    return Sasl(reader.read_buffer())


def _read_acls(reader: JuteReader) -> list[Acl]:
    return reader.read_vector(lambda: Acl(reader.read_int(), reader.read_string(), reader.read_string()))


def _read_multi(reader: JuteReader) -> Multi:
    return Multi(_read_operations(reader, _IN_MULTI))


def _read_multi_read(reader: JuteReader) -> MultiRead:
    return MultiRead(_read_operations(reader, _IN_MULTI_READ))


def _read_operations(reader: JuteReader, readers: Mapping[int, Callable[[JuteReader], T]]) -> list[tuple[OpCode, T]]:
    operations: list[tuple[OpCode, T]] = []
    while True:
        number, is_done, _error = reader.read_int(), reader.read_boolean(), reader.read_int()
        if is_done:
            return operations
        if number not in readers:
            raise UnsupportedRequest(f"an operation of type {number} among several")
        if len(operations) == OPERATIONS_MAX:
            raise UnsupportedRequest(f"more than {OPERATIONS_MAX} operations in one request")
        operations.append((OpCode(number), readers[number](reader)))


def _read_set_watches(reader: JuteReader) -> SetWatches:
    kinds = (WatchKind.DATA, WatchKind.CREATION, WatchKind.CHILDREN)
    return SetWatches(reader.read_long(), _each_watch(reader, kinds))


def _read_set_watches2(reader: JuteReader) -> SetWatches:
    return SetWatches(reader.read_long(), _each_watch(reader, WatchKind))


def _each_watch(reader: JuteReader, kinds: Iterable[WatchKind]) -> Iterator[tuple[WatchKind, str]]:
    for kind in kinds:
        for _ in range(reader.read_count()):
            yield kind, reader.read_string()


def _read_watches(reader: JuteReader) -> Watches:
    path, kind = reader.read_string(), reader.read_int()
    return Watches(path, of_children=kind in (1, 3), of_data=kind in (2, 3))


def _read_nothing(_reader: JuteReader) -> Nothing:
    return Nothing()


_IN_MULTI: Final[Mapping[int, Callable[[JuteReader], Write]]] = {
    OpCode.CREATE: _read_create,
    OpCode.CREATE2: _read_create,
    OpCode.DELETE: _read_delete,
    OpCode.SET_DATA: _read_set_data,
    OpCode.CHECK: _read_check,
}

_IN_MULTI_READ: Final[Mapping[int, Callable[[JuteReader], Read]]] = {
    OpCode.GET_DATA: _read_read,
    OpCode.GET_CHILDREN: _read_read,
}

_BODIES: Final[Mapping[OpCode, Callable[[JuteReader], Body]]] = {
    **{OpCode(number): read for number, read in _IN_MULTI.items()},
    OpCode.EXISTS: _read_read,
    OpCode.GET_DATA: _read_read,
    OpCode.GET_ACL: _read_path,
    OpCode.SET_ACL: _read_set_acl,
    OpCode.GET_CHILDREN: _read_read,
    OpCode.SYNC: _read_path,
    OpCode.PING: _read_nothing,
    OpCode.GET_CHILDREN2: _read_read,
    OpCode.MULTI: _read_multi,
    OpCode.MULTI_READ: _read_multi_read,
    OpCode.CHECK_WATCHES: _read_watches,
    OpCode.REMOVE_WATCHES: _read_watches,
    OpCode.AUTH: _read_auth,
    OpCode.SASL: _read_sasl,
    OpCode.SET_WATCHES: _read_set_watches,
    OpCode.GET_EPHEMERALS: _read_path,
    OpCode.GET_ALL_CHILDREN_NUMBER: _read_path,
    OpCode.SET_WATCHES2: _read_set_watches2,
    OpCode.CLOSE_SESSION: _read_nothing,
}


# -- the bodies of responses


def encode_acls(acls: Sequence[Acl]) -> bytes:
    """An encoded ACL."""
    entries = (encode_int(acl.permissions) + encode_string(acl.scheme) + encode_string(acl.identity) for acl in acls)
    return encode_int(len(acls)) + b"".join(entries)


def write_result(op_code: OpCode, path: str, stat: Stat | None) -> bytes:
    """The result of one write, alone or in a transaction: the path of a new znode, and the znode's metadata."""
    if op_code is OpCode.CREATE:
        return encode_string(path)
    if op_code is OpCode.CREATE2:
        assert stat is not None, f"{path} was created"
        return encode_string(path) + encode_stat(stat)
    return encode_stat(stat) if op_code is OpCode.SET_DATA and stat is not None else b""


def multi_response(results: Iterable[tuple[OpCode, bytes] | ErrorCode]) -> bytes:
    """The response to a successful transaction, or to several reads, some of which may have failed."""
    parts = (
        _error_result(result)
        if isinstance(result, ErrorCode)
        else encode_int(result[0]) + encode_boolean(False) + encode_int(0) + result[1]
        for result in results
    )
    return b"".join(parts) + _END_OF_MULTI


def multi_failure(count: int, culprit: int, error: ErrorCode) -> bytes:
    """The response to a failed transaction: operations before the impossible one get OK, those after it an error that
    says that they were not tried (`DataTree.processTxn`).
    """
    codes = [ErrorCode.OK] * culprit + [error] + [ErrorCode.RUNTIME_INCONSISTENCY] * (count - culprit - 1)
    return multi_response(codes)


def _error_result(code: ErrorCode) -> bytes:
    return encode_int(_ERROR_RESULT) + encode_boolean(False) + encode_int(code) + encode_int(code)
