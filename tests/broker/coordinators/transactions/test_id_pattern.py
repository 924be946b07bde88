"""Regular expressions for transactional ids: what they match, and what they may cost."""

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.broker.coordinators.transactions.id_pattern import CHARACTERS_MAX, STEPS_PER_ID_MAX, IdPattern
from barnabas.wire.errors import ApiError, ErrorCode

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("app-.*", ["app-", "app-1"], ["my-app-1", "app", "app-\n"]),
        ("a|b", ["a", "b"], ["ab", "c"]),
        (r"\pL+", ["größe", "λ"], ["a1"]),
        ("(?i)STRASSE", ["strasse"], ["straße"]),
        (".", ["ü", "🎉"], ["", "üü"]),
        ("", [""], ["a"]),
    ],
)
def test_the_whole_id_must_match(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = IdPattern(pattern)
    for text in (*matching, *other):
        assert compiled.matches(text.encode()) == (text in matching), text


@pytest.mark.parametrize("pattern", ["(", "[", "a**", r"(a)\1", "(?=a)", "a{1001}", "(?P<x", r"\p{Nope}"])
def test_an_invalid_expression_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ApiError) as refused:
        IdPattern(pattern)
    assert refused.value.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr() == ("", ""), "RE2 writes to stderr unless it is told not to"


@pytest.mark.parametrize("pattern", ["((a{100}){10}){10}", r"(\pL{10}x){10}" * 20, r"\pL{1000}"])
def test_an_expression_may_not_become_large(pattern: str) -> None:
    with pytest.raises(ApiError) as refused:
        IdPattern(pattern)
    assert refused.value.error is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(x|xx)*y", "(x*)*(x*)*(x*)*y", "(a|x)*x(a|x){20}y"])
def test_time_grows_with_the_length_of_an_id_only(pattern: str) -> None:
    """Python's own engine would not come back from these."""
    compiled = IdPattern(pattern)
    assert not compiled.matches(b"x" * 32_000)
    assert compiled.steps(b"x" * 32_000) - compiled.steps(b"x" * 16_000) == compiled.steps(
        b"x" * 16_000
    ) - compiled.steps(b"")


def test_an_expression_may_not_be_long() -> None:
    IdPattern("x" * CHARACTERS_MAX)
    with pytest.raises(ApiError) as refused:
        IdPattern("x" * (CHARACTERS_MAX + 1))
    assert refused.value.error is ErrorCode.POLICY_VIOLATION


def test_a_long_id_and_a_large_expression_do_not_go_together() -> None:
    large = IdPattern("(.*a){100}")
    assert large.steps(b"x" * 200) < STEPS_PER_ID_MAX
    with pytest.raises(ApiError) as refused:
        large.steps(b"x" * 32_000)
    assert refused.value.error is ErrorCode.POLICY_VIOLATION
    assert IdPattern("(app|other)-[0-9]{1,3}-.*").steps(b"x" * 32_000) < STEPS_PER_ID_MAX


def test_no_compiled_expression_is_kept() -> None:
    import re2

    IdPattern("kept-or-not")
    assert re2._Regexp._make.cache_info().currsize == 0


def test_the_engine_is_imported_when_it_is_first_used() -> None:
    code = "import sys, barnabas.broker.handlers.list_transactions; print('re2' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "False"
