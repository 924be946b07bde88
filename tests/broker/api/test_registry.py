"""The declarations of handler files."""

from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from typing import get_args, get_origin

import pytest

from barnabas.broker import handlers
from barnabas.broker.api.registry import Handler
from barnabas.broker.handlers import apis_between_brokers, served_apis
from barnabas.wire import messages

MODULES = {**served_apis(), **apis_between_brokers()}


def test_each_file_is_in_a_table() -> None:
    files = {path.stem for path in Path(str(handlers.__file__)).parent.glob("*.py")}
    assert files - {"__init__"} == set(MODULES.values())


@pytest.mark.parametrize("key", sorted(MODULES))
def test_a_handler_is_declared_with_the_messages_of_its_api(key: int) -> None:
    """mypy checks its function against the declared type, and this test the declared type against the key."""
    module = import_module(f"{handlers.__name__}.{MODULES[key]}")
    declared = get_annotations(module, eval_str=True)["HANDLER"]
    assert get_origin(declared) is Handler
    api = messages.api(key)
    assert get_args(declared) == (api.request_class, api.response_class)
