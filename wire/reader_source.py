"""The source of the flat function that reads one version of a message.

Runs of fixed-width fields, and the length that ends them, become one `struct` call; structs are read in place, without
a call per struct; nothing is looked up per field. The text looks like this (HeartbeatRequest, version 4):

    limit = len(buf)
    try:
        o1 = new(C2)
        n3 = buf[pos]; pos += 1
        if n3 > 127: n3, pos = varint(buf, pos - 1)
        if not 0 < n3 <= 32768 or (e4 := pos + n3 - 1) > limit: fail('group_id', n3)
        o1.group_id = str(buf[pos:e4], 'utf-8')
        pos = e4
        o1.generation_id, n5 = u_iB(buf, pos); pos += 5
        ...

Every length is checked against the bytes that remain before anything is made of it, and an array's count
against the least size of that many elements, so the memory a message takes is proportional to its bytes. The factor
can be large, though: two bytes may become an object of a hundred. A request's arrays together may therefore not have
more than ELEMENTS_MAX elements, or as many as a caller says are `left`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any, NoReturn, Protocol, cast

from barnabas.wire.errors import ProtocolError, TooManyElements
from barnabas.wire.function_source import FunctionSource, compiled
from barnabas.wire.primitives import TAGGED_FIELDS_MAX, Buffer, read_unsigned_varint, skip_tagged_fields
from barnabas.wire.schema import PRIMITIVE_FORMATS, UNSET, Array, Field, Message

STRING_SIZE_MAX = 0x7FFF
"""The maximum bytes of a string in any version: compact lengths allow more, but Kafka refuses it."""

ELEMENTS_MAX = 50_000
"""The maximum number of elements in all arrays of one request, including tagged fields: 25 times the partitions that
Kafka lets one request describe (`max.request.partition.size.limit`, 2,000). Each costs up to 50 us until the response.
"""


class Reader(Protocol):
    """Reads a message from `buf`, from `pos` on; returns it and the position behind it."""

    def __call__(self, buf: Buffer, pos: int, left: int = ELEMENTS_MAX) -> tuple[Any, int]:
        """`left`: the maximum number of elements in all arrays of the request; TooManyElements is raised beyond it."""
        ...


def compile_reader(message: type[Message], version: int) -> Reader:
    """The function `(buffer, position, left) -> (message, next position)` for one version. It raises only
    ProtocolError, including its subclass TooManyElements.
    """
    return cast(Reader, compiled(ReaderSource(message, version), "read"))


def minimum_size(kind: str | Array | type[Message], version: int, flexible: bool, nullable: bool = False) -> int:
    """The fewest bytes a value of a type takes in a version."""
    if isinstance(kind, Array) or kind in ("bytes", "records"):
        return 1 if flexible else 4
    if isinstance(kind, str):
        return Struct(PRIMITIVE_FORMATS[kind]).size if kind in PRIMITIVE_FORMATS else 1 if flexible else 2
    if nullable:
        return 1
    present = (field for field in kind.FIELDS if field.exists_in(version) and field.tag is None)
    return flexible + sum(minimum_size(f.type, version, flexible, f.is_nullable_in(version)) for f in present)


class ReaderSource(FunctionSource):
    """The source of `read(buf, pos, left)`. Its arguments: `compile_reader`'s."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self.is_limited = message.__name__.endswith("Request")
        self.names = {
            "new": object.__new__,
            "varint": read_unsigned_varint,
            "skip_tags": skip_tagged_fields,
            "fail": self._make_fail(),
            "too_many": self._make_too_many(),
            "unpack_from": unpack_from,
            "FAILURES": (struct_error, IndexError, UnicodeDecodeError),
            "ProtocolError": ProtocolError,
        }

    def text(self) -> str:
        root = self.read_struct(self.message)
        self.flush()
        head = [f"def read(buf, pos, left={ELEMENTS_MAX}):", "    limit = len(buf)"]
        if any("view[" in line for line in self.lines):
            head.append("    view = memoryview(buf)")
        foot = [
            f"        return {root}, pos",
            "    except FAILURES as error:",
            f"        raise ProtocolError(f'{self.title}: {{error}}') from None",
        ]
        return "\n".join([*head, "    try:", *self.lines, *foot])

    def read_struct(self, struct: type[Message]) -> str:
        """Read a struct into a new variable; returns the variable's name."""
        target = self.name("o")
        self.emit(f"{target} = new({self.constant('C', struct)})")
        present = [field for field in struct.FIELDS if field.exists_in(self.version)]
        for field in struct.FIELDS:
            if field not in present or field.tag is not None:
                self.emit(f"{target}.{field.name} = {self.default(field)}")
        for field in present:
            if field.tag is None:
                self.read_field(field, f"{target}.{field.name}")
        if self.flexible:
            self.read_tagged_fields(target, [field for field in present if field.tag is not None])
        return target

    def read_field(self, field: Field, target: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if isinstance(field.type, Array):
            self.read_array(field, target, field.type.element, nullable)
        elif isinstance(field.type, str):
            self.read_primitive(field, target, field.type, nullable)
        elif nullable:
            present = self.name("n")
            self.run.append(("b", present))
            with self.block(f"if {present} < 0:"):
                self.emit(f"{target} = None")
            with self.block("else:"):
                self.emit(f"{target} = {self.read_finished_struct(field.type)}")
        else:
            self.emit(f"{target} = {self.read_struct(field.type)}")

    def read_finished_struct(self, struct: type[Message]) -> str:
        name = self.read_struct(struct)
        self.flush()
        return name

    def read_primitive(self, field: Field, target: str, kind: str, nullable: bool) -> None:
        if kind in PRIMITIVE_FORMATS:
            self.run.append((PRIMITIVE_FORMATS[kind], target))
            return
        length = self.read_length("h" if kind == "string" else "i")
        if nullable:
            with self.block(f"if {self.is_null(length)}:"):
                self.emit(f"{target} = None")
            with self.block("else:"):
                self.read_content(field, target, kind, length)
        else:
            self.read_content(field, target, kind, length)

    def read_content(self, field: Field, target: str, kind: str, length: str) -> None:
        """Read a number of bytes given by the variable `length`, which is one more than the number in a flexible
        version.
        """
        end = self.name("e")
        lowest = "0 <" if self.flexible else "0 <="
        highest = f" <= {STRING_SIZE_MAX + 1}" if kind == "string" and self.flexible else ""
        past = f"({end} := pos + {length}{' - 1' if self.flexible else ''}) > limit"
        self.emit(f"if not {lowest} {length}{highest} or {past}: fail({field.name!r}, {length})")
        if kind == "string":
            self.emit(f"{target} = str(buf[pos:{end}], 'utf-8')")
        elif kind == "bytes":
            self.emit(f"{target} = bytes(buf[pos:{end}])")
        else:
            self.emit(f"{target} = view[pos:{end}]")
        self.emit(f"pos = {end}")

    def read_array(self, field: Field, target: str, element: str | type[Message], nullable: bool) -> None:
        count = self.read_length("i")
        if nullable:
            with self.block(f"if {self.is_null(count)}:"):
                self.emit(f"{target} = None")
            with self.block("else:"):
                self.read_elements(field, target, element, count)
        else:
            self.read_elements(field, target, element, count)

    def read_elements(self, field: Field, target: str, element: str | type[Message], count: str) -> None:
        if self.flexible:
            self.emit(f"{count} -= 1")
        size = max(1, minimum_size(element, self.version, self.flexible))
        self.emit(
            f"if not 0 <= {count} <= (limit - pos){f' // {size}' if size > 1 else ''}: fail({field.name!r}, {count})"
        )
        if self.is_limited:
            self.emit(f"left -= {count}")
            self.emit(f"if left < 0: too_many({field.name!r}, {count})")
        if element == "uuid":
            self.emit(f"{target} = [bytes(buf[at:at + 16]) for at in range(pos, pos + 16 * {count}, 16)]")
            self.emit(f"pos += 16 * {count}")
        elif isinstance(element, str) and element in PRIMITIVE_FORMATS:
            elements = f"unpack_from(f'>{{{count}}}{PRIMITIVE_FORMATS[element]}', buf, pos)"
            self.emit(f"{target} = list({elements}) if {count} else []")
            self.emit(f"pos += {f'{size} * ' if size > 1 else ''}{count}")
        else:
            self.read_elements_one_by_one(field, target, element, count)

    def read_elements_one_by_one(self, field: Field, target: str, element: str | type[Message], count: str) -> None:
        values = self.name("a")
        self.emit(f"{target} = {values} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(element, str):
                value = self.name("v")
                self.read_primitive(field, value, element, nullable=False)
            else:
                value = self.read_finished_struct(element)
            self.emit(f"{values}.append({value})")

    def read_tagged_fields(self, target: str, fields: list[Field]) -> None:
        count = self.name("t")
        self.run.append(("B", count))
        if not fields:
            self.flush()
            with self.block(f"if {count}:"):
                self.charge_tagged_fields(count)
                self.emit("pos = skip_tags(buf, pos - 1)")
            return
        with self.block(f"if {count}:"):
            self.emit(f"if {count} > {TAGGED_FIELDS_MAX}: fail('tagged fields', {count})")
            self.charge_tagged_fields(count)
            with self.block(f"for _ in range({count}):"):
                tag, size, end = self.name("t"), self.name("n"), self.name("e")
                self.read_varint(tag)
                self.read_varint(size)
                self.emit(f"if ({end} := pos + {size}) > limit: fail('tagged field', {size})")
                for branch, field in enumerate(fields):
                    with self.block(f"{'elif' if branch else 'if'} {tag} == {field.tag}:"):
                        self.read_field(field, f"{target}.{field.name}")
                        self.flush()
                        self.emit(f"if pos != {end}: fail({field.name!r}, {size})")
                self.emit(f"else: pos = {end}")

    def charge_tagged_fields(self, count: str) -> None:
        """Count tagged fields like elements of arrays, as they cost the same time."""
        if self.is_limited:
            self.emit(f"left -= {count}")
            self.emit(f"if left < 0: too_many('tagged fields', {count})")

    def read_length(self, legacy_format: str) -> str:
        """Read a length into a new variable; in a flexible version the value is one more than the length, and zero
        means null.
        """
        name = self.name("n")
        if self.flexible:
            self.read_varint(name)
        else:
            self.run.append((legacy_format, name))
            self.flush()
        return name

    def read_varint(self, target: str) -> None:
        self.run.append(("B", target))
        self.flush()
        self.emit(f"if {target} > 127: {target}, pos = varint(buf, pos - 1)")

    def is_null(self, length: str) -> str:
        return f"not {length}" if self.flexible else f"{length} < 0"

    def default(self, field: Field) -> str:
        if field.default is not UNSET:
            return self.literal(field.default)
        if isinstance(field.type, Array):
            return "[]"
        return f"{self.constant('C', field.type)}()"

    def literal(self, value: object) -> str:
        return repr(value) if isinstance(value, int | float | str | None) else self.constant("D", value)

    def flush(self) -> None:
        if not self.run:
            return
        run, self.run = self.run, []
        formats = "".join(item for item, _ in run)
        targets = ", ".join(target for _, target in run)
        if formats == "B":
            self.emit(f"{targets} = buf[pos]; pos += 1")
            return
        compiled = Struct(">" + formats)
        unpack = self.constant("u_" + formats.replace("?", "t"), compiled.unpack_from)
        comma = "," if len(run) == 1 else ""
        self.emit(f"{targets}{comma} = {unpack}(buf, pos); pos += {compiled.size}")

    def constant(self, prefix: str, value: Any) -> str:
        """A global name for a value that the generated source needs."""
        if prefix in ("C", "D"):
            for name, known in self.names.items():
                if known is value:
                    return name
            prefix = self.name(prefix)
        self.names.setdefault(prefix, value)
        return prefix

    def _make_fail(self) -> Callable[[str, int], NoReturn]:
        title = self.title

        def fail(field: str, length: int) -> NoReturn:
            raise ProtocolError(f"{title}: {field}: a length or count of {length} is not possible here")

        return fail

    def _make_too_many(self) -> Callable[[str, int], NoReturn]:
        title = self.title

        def too_many(field: str, count: int) -> NoReturn:
            raise TooManyElements(f"{title}: {field}: with {count} more elements there are too many")

        return too_many
