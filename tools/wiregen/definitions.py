"""Parses Kafka's message definitions (JSON with // comments) to a `Definition` with its structs and fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

PRIMITIVES = {
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes",
    "records",
}


@dataclass(frozen=True)
class FieldDefinition:
    """One field. `default` is Kafka's, as a value of the type; FRESH for an empty list or a struct of defaults."""

    name: str
    type: str
    versions: str
    nullable: str
    tag: int | None
    default: Any
    ignorable: bool

    @property
    def element(self) -> str:
        """The type without its array brackets."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def is_struct(self) -> bool:
        return self.type not in PRIMITIVES and not self.is_array


@dataclass(frozen=True)
class Definition:
    """One message: each struct follows the ones that it uses."""

    name: str
    api_key: int | None
    valid_versions: str
    flexible_versions: str
    fields: tuple[FieldDefinition, ...]
    structs: dict[str, tuple[FieldDefinition, ...]]


class _Fresh:
    """A default that is created for each message."""


FRESH = _Fresh()


OwnFields = Mapping[str, Sequence[dict[str, Any]]]


def parse(text: str, own_fields: OwnFields = MappingProxyType({})) -> Definition:
    """Parse one definition file; `own_fields` are appended to the structs."""
    tree = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    common = {struct["name"]: struct["fields"] for struct in tree.get("commonStructs", ())}
    structs: dict[str, tuple[FieldDefinition, ...]] = {}
    fields = _parse_fields(tree["fields"], common, structs, own_fields)
    return Definition(
        name=tree["name"],
        api_key=tree.get("apiKey"),
        valid_versions=tree["validVersions"],
        flexible_versions=tree["flexibleVersions"],
        fields=fields,
        structs=structs,
    )


def _parse_fields(
    nodes: Sequence[dict[str, Any]],
    common: dict[str, Any],
    structs: dict[str, tuple[FieldDefinition, ...]],
    own_fields: OwnFields,
) -> tuple[FieldDefinition, ...]:
    fields = []
    for node in nodes:
        field = _parse_field(node)
        fields.append(field)
        if field.element not in PRIMITIVES and field.element not in structs:
            inner = node["fields"] if "fields" in node else common[field.element]
            inner = [*inner, *own_fields.get(field.element, ())]
            parsed = _parse_fields(inner, common, structs, own_fields)
            structs[field.element] = parsed
    return tuple(fields)


def _parse_field(node: dict[str, Any]) -> FieldDefinition:
    type_name = node["type"]
    tagged = node.get("taggedVersions", "none")
    versions = node.get("versions", tagged)
    if "tag" in node and tagged != versions:
        raise ValueError(f"{node['name']} is tagged in {tagged} only: the generator knows no such field")
    if "flexibleVersions" in node:
        raise ValueError(f"{node['name']} has flexible versions of its own: the generator knows no such field")
    return FieldDefinition(
        name=node["name"],
        type=type_name,
        versions=versions,
        nullable=node.get("nullableVersions", "none"),
        tag=node.get("tag"),
        default=_parse_default(type_name, node.get("default")),
        ignorable=node.get("ignorable", False),
    )


def _parse_default(type_name: str, default: Any) -> Any:
    if default in ("null", "None"):
        return None
    if type_name == "bool":
        return default in (True, "true")
    if type_name == "string":
        return default or ""
    if type_name == "bytes":
        return b""
    if type_name == "uuid":
        return bytes(16)
    if type_name == "records":
        return None
    if type_name == "float64":
        return float(default or 0)
    if type_name in PRIMITIVES:
        return int(str(default), 0) if default not in (None, "") else 0
    return FRESH
