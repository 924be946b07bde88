"""The source of the flat function that writes one version of a message; the counterpart of `reader_source.py`.

The function appends byte strings to a list of parts: everything small goes into one growing bytearray,
written with one `struct` call per run of fixed-width fields and lengths; record batches are appended as they
are, so they reach the socket uncopied.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack
from struct import error as struct_error
from typing import Any, NoReturn

from barnabas.wire.function_source import FunctionSource, compiled
from barnabas.wire.primitives import Buffer, unsigned_varint
from barnabas.wire.reader_source import STRING_SIZE_MAX
from barnabas.wire.schema import PRIMITIVE_FORMATS, UNSET, Array, Field, Message

Writer = Callable[[Any, list[Buffer]], None]

RECORDS_COPIED_MAX = 512
"""Record data up to this size is copied into the part before it: cheaper than a part of its own."""


def compile_writer(message: type[Message], version: int) -> Writer:
    """The function `(message, parts) -> None` that appends the bytes of one version.

    It raises ValueError for values that the version cannot carry.
    """
    return compiled(WriterSource(message, version), "write")


class WriterSource(FunctionSource):
    """The source of `write(m, parts)`. Its arguments: `compile_writer`'s."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self.out = "out"
        """The variable of the bytearray to write to; a different one inside a tagged field, whose size is sent first.
        """
        self.names = {
            "pack": pack,
            "varint": unsigned_varint,
            "put_records": _put_records,
            "records_size": _records_size,
            "fitting": _fitting,
            "unsupported": self._make_unsupported(),
            "FAILURES": (struct_error, AttributeError, TypeError),
        }

    def text(self) -> str:
        self.write_struct(self.message, "m")
        self.flush()
        head = ["def write(m, parts):", "    out = bytearray()", "    try:"]
        foot = [
            "    except FAILURES as error:",
            f"        raise ValueError(f'{self.title} cannot be written: {{error}}') from error",
            "    parts.append(out)",
        ]
        return "\n".join([*head, *(self.lines or ["        pass"]), *foot])

    def write_struct(self, struct: type[Message], value: str) -> None:
        present = [field for field in struct.FIELDS if field.exists_in(self.version)]
        for field in struct.FIELDS:
            if field not in present and not field.ignorable:
                test = self.differs_from_default(field, f"{value}.{field.name}")
                self.emit(f"if {test}: unsupported({struct.__name__!r}, {field.name!r})")
        for field in present:
            if field.tag is None:
                self.write_field(field, f"{value}.{field.name}")
        if self.flexible:
            tagged = [field for field in present if field.tag is not None]
            self.write_tagged_fields(value, sorted(tagged, key=lambda field: field.tag or 0))

    def write_field(self, field: Field, value: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if isinstance(field.type, Array):
            self.write_array(value, field.type.element, nullable)
        elif isinstance(field.type, str):
            self.write_primitive(value, field.type, nullable)
        elif nullable:
            with self.block(f"if {value} is None:"):
                self.run.append(("b", "-1"))
            with self.block("else:"):
                self.run.append(("b", "1"))
                self.write_struct(field.type, self.variable("o", value))
        else:
            self.write_struct(field.type, self.variable("o", value))

    def write_primitive(self, value: str, kind: str, nullable: bool) -> None:
        if kind in PRIMITIVE_FORMATS:
            self.run.append((PRIMITIVE_FORMATS[kind], value))
            return
        is_told = value.endswith("error_message")
        value = self.variable("v", value)
        length = self.name("n")
        content = value if kind != "string" else self.name("e")
        size = f"records_size({value})" if kind == "records" else f"len({content})"
        # Names from requests fit; texts for people that contain them may be too long.
        encoded = f"fitting({value})" if is_told else f"{value}.encode()"
        encode = f"{content} = {encoded}; " if kind == "string" else ""
        present = f"{encode}{length} = {size}{' + 1' if self.flexible else ''}"
        if nullable:
            nothing = "" if kind == "records" else f"; {content} = b''"
            self.emit(f"if {value} is None: {length} = {'0' if self.flexible else '-1'}{nothing}")
            self.emit(f"else: {present}")
        else:
            self.emit(present)
        self.write_length(length, "h" if kind == "string" else "i")
        if kind == "records":
            self.emit(f"if {length} > {1 if self.flexible else 0}: out = put_records(parts, out, {value}, {length})")
        else:
            self.emit(f"{self.out} += {content}")

    def write_array(self, value: str, element: str | type[Message], nullable: bool) -> None:
        values = self.variable("a", value)
        count = self.name("n")
        present = f"{count} = len({values}){' + 1' if self.flexible else ''}"
        if nullable:
            self.emit(f"if {values} is None: {count} = {'0' if self.flexible else '-1'}; {values} = ()")
            self.emit(f"else: {present}")
        else:
            self.emit(present)
        self.write_length(count, "i")
        if element == "uuid":
            self.emit(f"if {values}: {self.out} += pack('16s' * len({values}), *{values})")
        elif isinstance(element, str) and element in PRIMITIVE_FORMATS:
            packed = f"pack(f'>{{len({values})}}{PRIMITIVE_FORMATS[element]}', *{values})"
            self.emit(f"if {values}: {self.out} += {packed}")
        else:
            each = self.name("o")
            with self.block(f"for {each} in {values}:"):
                if isinstance(element, str):
                    self.write_primitive(each, element, nullable=False)
                else:
                    self.write_struct(element, each)

    def write_tagged_fields(self, value: str, fields: list[Field]) -> None:
        """Write the tagged fields that differ from their default, in the order of their tags."""
        if not fields:
            self.run.append(("x", ""))
            return
        tests = [self.differs_from_default(field, f"{value}.{field.name}") for field in fields]
        with self.block(f"if {' or '.join(tests)}:"):
            outer, count, section, self.out = self.out, self.name("t"), self.name("s"), self.name("s")
            self.emit(f"{count} = 0; {section} = bytearray()")
            for field, test in zip(fields, tests, strict=True):
                with self.block(f"if {test}:"):
                    self.emit(f"{count} += 1; {self.out} = bytearray()")
                    self.write_field(field, f"{value}.{field.name}")
                    self.flush()
                    self.emit(f"{section} += varint({field.tag}); {section} += varint(len({self.out}))")
                    self.emit(f"{section} += {self.out}")
            self.out = outer
            self.emit(f"{outer} += varint({count}); {outer} += {section}")
        with self.block("else:"):
            self.run.append(("x", ""))

    def write_length(self, length: str, legacy_format: str) -> None:
        """Write the pending run and the length that ends it, with one call unless the length needs several bytes."""
        if not self.flexible:
            self.run.append((legacy_format, length))
            self.flush()
            return
        run = self.run
        self.run = [*run, ("B", length)]
        with self.line(f"if {length} < 128:"):
            self.flush()
        with self.line("else:"):
            if legacy_format == "h":
                message = f"f'a string of {{{length} - 1}} bytes is too long'"
                self.emit(f"if {length} > {STRING_SIZE_MAX + 1}: raise TypeError({message})")
            self.run = run
            self.flush()
            self.emit(f"{self.out} += varint({length})")

    def differs_from_default(self, field: Field, value: str) -> str:
        default = field.default
        if default is None:
            return f"{value} is not None"
        if isinstance(field.type, Array) or field.type == "bytes":
            return f"({value} is None or {value})" if field.nullable[0] <= field.nullable[1] else value
        if isinstance(field.type, str):
            return f"{value} != {default!r}"
        constant = self.constant("D", field.type() if default is UNSET else default)
        return f"({value} is not {constant} and {value} != {constant})"

    def flush(self) -> None:
        """As in `FunctionSource`; the format x, a zero byte, has no expression."""
        if not self.run:
            return
        run, self.run = self.run, []
        formats = "".join(item for item, _ in run)
        if formats == "B":
            self.emit(f"{self.out}.append({run[0][1]})")
        elif formats == "x" * len(run):
            self.emit(f"{self.out} += {bytes(len(run))!r}")
        else:
            arguments = ", ".join(expression for item, expression in run if item != "x")
            packer = self.constant("p_" + formats.replace("?", "t"), Struct(">" + formats).pack)
            self.emit(f"{self.out} += {packer}({arguments})")

    def variable(self, prefix: str, expression: str) -> str:
        name = self.name(prefix)
        self.emit(f"{name} = {expression}")
        return name

    def constant(self, prefix: str, value: Any) -> str:
        """A global name for a value that the generated source needs."""
        name = self.name(prefix) if prefix == "D" else prefix
        self.names.setdefault(name, value)
        return name

    def _make_unsupported(self) -> Callable[[str, str], NoReturn]:
        title = self.title

        def unsupported(struct: str, field: str) -> NoReturn:
            raise ValueError(f"{title} has no field {struct}.{field}, which is not its default here")

        return unsupported


def _fitting(text: str) -> bytes:
    """The text in UTF-8, truncated to the maximum length of a string."""
    encoded = text.encode()
    return encoded if len(encoded) <= STRING_SIZE_MAX else encoded[:STRING_SIZE_MAX].decode(errors="ignore").encode()


def _records_size(records: Any) -> int:
    return sum(map(len, records)) if isinstance(records, list) else len(records)


def _put_records(parts: list[Buffer], out: bytearray, records: Any, size: int) -> bytearray:
    """Append record data by reference; returns the bytearray to continue with."""
    pieces = records if isinstance(records, list) else (records,)
    if size <= RECORDS_COPIED_MAX:
        for piece in pieces:
            out += piece
        return out
    parts.append(out)
    parts.extend(pieces)
    return bytearray()
