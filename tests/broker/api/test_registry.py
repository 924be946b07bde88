"""What handler files declare."""

from importlib import import_module
from inspect import get_annotations
from typing import get_args, get_origin

import pytest

from barnabas.broker import handlers
from barnabas.broker.api.registry import Handler
from barnabas.broker.handlers import served_apis
from barnabas.wire import messages


@pytest.mark.parametrize("key", sorted(served_apis()))
def test_a_handler_is_declared_with_the_messages_of_its_api(key: int) -> None:
    """mypy checks its function against the declared type, and this test the declared type against the key."""
    module = import_module(f"{handlers.__name__}.{served_apis()[key]}")
    declared = get_annotations(module, eval_str=True)["HANDLER"]
    assert get_origin(declared) is Handler
    api = messages.api(key)
    assert get_args(declared) == (api.request_class, api.response_class)
