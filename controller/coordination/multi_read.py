"""Many znodes in one request: ZooKeeper's multiRead, which kazoo lacks.

A request of type 22 contains for each read a header (the type of the read, whether this is the end, an error) and its
body, and a last header that marks the end. The response has the same form; a failed read has type -1, and its body is
the error. Servers before 3.6 respond Unimplemented.

*Source*: ZOOKEEPER-1407, `MultiOperationRecord.java`, `MultiResponse.java`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, stat_struct

READS_MAX: Final = 100
"""The maximum number of reads per request: with that many the request's own cost is negligible, and requests of other
clients do not wait long.
"""

_FAILED: Final = -1


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request for the data of several znodes, as kazoo's connection sends and reads it. Its result contains for each,
    in order, data and kazoo's stat, or a kazoo exception.
    """

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
