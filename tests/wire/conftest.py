"""Values for message tests: every message class with its versions, and messages with random but legal contents."""

import random
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import barnabas.wire.messages
from barnabas.wire.schema import Array, Field, Message

RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def message_classes() -> list[type[Message]]:
    package = barnabas.wire.messages
    modules = [import_module(f"{package.__name__}.{info.name}") for info in iter_modules(package.__path__)]
    classes = [value for module in modules for value in vars(module).values() if hasattr(value, "VALID_VERSIONS")]
    return sorted(classes, key=lambda cls: cls.__name__)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "message_class" in metafunc.fixturenames:
        classes = message_classes()
        metafunc.parametrize("message_class", classes, ids=[cls.__name__ for cls in classes])


@pytest.fixture(scope="session")
def sample() -> Callable[..., Any]:
    return sample_message


def sample_message(cls: type[Message], version: int, rng: random.Random, *, modest: bool = False) -> Any:
    """A message that the version can carry. `modest` keeps numbers in the ranges that clients give a meaning to."""
    message = cls()
    for field in cls.FIELDS:
        if field.exists_in(version):
            setattr(message, field.name, _value(field, version, rng, modest))
    return message


def _value(field: Field, version: int, rng: random.Random, modest: bool) -> Any:
    if field.is_nullable_in(version) and rng.randrange(4) == 0:
        return None
    if isinstance(field.type, Array):
        element = field.type.element
        if isinstance(element, str):
            values = [_element(element, field.name, version, rng, modest) for _ in range(2)]
            return (values * 65)[: rng.choice((0, 1, 2, 2, 130))]
        return [_element(element, field.name, version, rng, modest) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if field.tag is not None and field.default is not None and not isinstance(field.type, str) and rng.randrange(2):
        return field.default
    return _element(field.type, field.name, version, rng, modest)


def _element(kind: str | type[Message], name: str, version: int, rng: random.Random, modest: bool) -> Any:
    if not isinstance(kind, str):
        return sample_message(kind, version, rng, modest=modest)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if kind == "uuid":
        return rng.choice((bytes(16), _bytes(16, rng)))
    if kind == "string":
        return rng.choice(("", "a", "topic-1", "grüße ☃ 🎉", "x" * 126, "y" * 127, "z" * 300))
    if kind in ("bytes", "records"):
        return _bytes(rng.choice((0, 1, 3, 126, 127, 200, 600)), rng)
    return _integer(kind, name, rng, modest)


def _bytes(size: int, rng: random.Random) -> bytes:
    first = rng.randrange(256)
    return bytes((first + 7 * index) % 256 for index in range(size))


def _integer(kind: str, name: str, rng: random.Random, modest: bool) -> int:
    if kind in ("uint16", "uint32"):
        return rng.choice((0, 1, 9092, 2 ** int(kind[4:]) - 1))
    limit = 2 ** RANGES[kind]
    if not modest:
        return rng.choice((0, 1, -1, -limit, limit - 1, rng.randrange(-limit, limit)))
    if "error_code" in name:
        return rng.randrange(0, 100)
    return rng.randrange(0, min(limit, 2**40))
