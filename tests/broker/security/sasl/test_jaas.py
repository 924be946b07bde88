"""Lines of sasl.jaas.config: what Kafka's parser takes, with the same result."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.jaas import JaasError, LoginModule

WORDS = st.from_regex(r"[A-Za-z_$][A-Za-z0-9._$-]{0,20}", fullmatch=True)
MODULES = st.builds(
    LoginModule,
    WORDS,
    st.sampled_from(["required", "requisite", "sufficient", "optional"]),
    st.dictionaries(WORDS, st.text(st.characters(exclude_categories=["Cs"]))),
)


@given(MODULES)
def test_lines_are_parsed(module: LoginModule) -> None:
    """Any value comes back from its quotes."""
    assert jaas.parse(module.line()) == module


@given(st.text())
def test_no_text_breaks_the_parser(line: str) -> None:
    """Any other text is a login module or an error."""
    with contextlib.suppress(JaasError):
        jaas.parse(line)


def test_syntax() -> None:
    """Words, both quotes, escapes, comments and line ends."""
    module = jaas.parse(
        "org.apache.kafka.common.security.plain.PlainLoginModule Required // a comment\n"
        '  /* another */ username=alice password=\'it"s \\"1\\" \\101\\t\' user_a$-b=x ;\n'
    )
    assert module.class_name == jaas.PLAIN_LOGIN_MODULE
    assert module.control_flag == "required"
    assert module.options == {"username": "alice", "password": 'it"s "1" A\t', "user_a$-b": "x"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  // nothing",
        "Module",
        "Module sometimes;",
        "Module required",
        'Module required a="1"',
        "Module required a;",
        "Module required a=;",
        "Module required a=1;",
        'Module required = "1";',
        "Module required; Module required;",
        '"" required;',
    ],
)
def test_errors(line: str) -> None:
    """What Kafka refuses: an unquoted value that begins with a digit, too."""
    with pytest.raises(JaasError):
        jaas.parse(line)


def test_secrets_are_hidden() -> None:
    """Neither the text form of a module nor an error has a password."""
    module = jaas.parse('Module required password="secret";')
    assert "secret" not in repr(module)
    with pytest.raises(JaasError) as refused:
        jaas.parse('Module required password="a"secret";')
    assert "secret" not in str(refused.value)


def test_the_module_belongs_to_the_mechanism() -> None:
    """A line of another mechanism's module is refused."""
    line = LoginModule(jaas.SCRAM_LOGIN_MODULE).line()
    assert jaas.parse_for("SCRAM-SHA-512", line).class_name == jaas.SCRAM_LOGIN_MODULE
    with pytest.raises(JaasError, match="PlainLoginModule"):
        jaas.parse_for("PLAIN", line)
