"""Secrets are compared in a time that says nothing about them (CVE-2021-38153)."""

import ast
from pathlib import Path
from typing import Final

import pytest

from barnabas.broker.security import broker_secrets
from barnabas.broker.security.sasl import plain, scram

SECRETS: Final = {"password", "secret", "stored_key", "server_key", "signature", "proof", "nonce", "expected", "digest"}


def names(node: ast.AST) -> set[str]:
    """The names and attributes in an expression, and the texts of subscripts."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    found |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)}


def compared(tree: ast.AST) -> list[set[str]]:
    """What `==` and `!=` compare, but for lengths and what is None."""
    return [
        names(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        and not (isinstance(node.left, ast.Call) and names(node.left.func) == {"len"})
    ]


@pytest.mark.parametrize("module", [plain, scram, broker_secrets], ids=lambda module: module.__name__)
def test_no_secret_is_compared_by_an_operator(module: object) -> None:
    """Each comparison of a secret is by hmac.compare_digest."""
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    tree = ast.parse(source)
    assert [each for each in compared(tree) if each & SECRETS] == []
    assert "compare_digest(" in source


def test_a_comparison_would_be_found() -> None:
    """The check sees one."""
    assert [each & SECRETS for each in compared(ast.parse("if found.password != expected: pass"))] == [
        {"password", "expected"}
    ]
