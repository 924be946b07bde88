"""Java's properties format; the expectations were compared with java.util.Properties itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a:1\nb 2\nc\t=\t3", {"a": "1", "b": "2", "c": "3"}),
        ("  a = 1  ", {"a": "1  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a==1", {"a": "=1"}),
        ("a = : 1", {"a": ": 1"}),
        ("# comment\n! comment\n\n   \na=1", {"a": "1"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=1\\\n   2", {"a": "12"}),
        ("a=1\\\\\n2=3", {"a": "1\\", "2": "3"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("\\\n# comment\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("\\", {"": ""}),
        ("\\\n", {"": ""}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b\\:c=d", {"a b:c": "d"}),
        ("a=\\t\\n\\f\\r\\q", {"a": "\t\n\f\rq"}),
        ("a=\\u00e9\\u4E2D", {"a": "é中"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_rules(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "\\uxyz1=1", "a=\\u"])
def test_malformed_unicode_escape_names_its_line(text: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        parse_properties(f"# first\n{text}")


def test_files_are_utf8_or_else_latin1() -> None:
    assert decode_properties("é".encode()) == "é"
    assert decode_properties("é".encode("latin-1")) == "é"
    assert decode_properties(b"\xef\xbb\xbfa=1") == "a=1"


def _escape(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_escaped_keys_and_values_come_back(properties: dict[str, str]) -> None:
    text = "\n".join(f"{_escape(key)}={_escape(value)}" for key, value in properties.items())
    assert parse_properties(text) == properties


@given(st.text(alphabet="ab=: \t\\\n\r#!u0041é"))
def test_anything_is_read_or_refused(text: str) -> None:
    try:
        properties = parse_properties(text)
    except PropertiesError:
        return
    assert all("\n" not in key or "\\n" in text for key in properties)
