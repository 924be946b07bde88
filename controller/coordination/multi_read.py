"""Many znodes in one request: ZooKeeper's multiRead, which kazoo does not have.

A request of type 22 holds for each read a header (the type of the read, whether this is the end, an error) and its
body, and a last header that says that this is the end. The answer has the same form; a read that failed is of type -1,
and its body is the error. Servers before 3.6 answer Unimplemented.

*Source*: ZOOKEEPER-1407, `MultiOperationRecord.java`, `MultiResponse.java`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, stat_struct

READS_MAX: Final = 100
"""How many reads a request should have: by then the request itself costs next to nothing, and what others ask of the
server does not wait for long."""

_FAILED: Final = -1


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request for the data of several znodes, as kazoo's connection sends and reads it. Its answer has for each, in
    that order, data and kazoo's stat, or an exception of kazoo's."""

    type: ClassVar = 22

    reads: Sequence[GetData]

    def serialize(self) -> bytes:
        parts = (MultiHeader(read.type, False, 0).serialize() + read.serialize() for read in self.reads)
        return b"".join(parts) + bytes(MultiHeader(_FAILED, True, _FAILED).serialize())

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Any]:
        return list(_results(answer, offset))


def _results(answer: bytes, offset: int) -> Iterator[Any]:
    while True:
        header, offset = MultiHeader.deserialize(answer, offset)
        if header.done:
            return
        if header.type == _FAILED:
            (code,) = int_struct.unpack_from(answer, offset)
            offset += int_struct.size
            yield EXCEPTIONS[code]()
        else:
            data, stat = GetData.deserialize(answer, offset)
            offset += int_struct.size + len(data or b"") + stat_struct.size
            yield data, stat
