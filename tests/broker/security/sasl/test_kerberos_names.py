"""Short names of Kerberos principals: Kafka's grammar of rules, and what it makes of names."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.sasl.kerberos_names import KerberosName, NoShortName, RuleError, ShortNamer, parse

REALM = "EXAMPLE.COM"
COMPONENT = st.text(st.characters(exclude_characters="/@", exclude_categories=["Cs"]), max_size=8)
WORD = st.text(string.ascii_letters + string.digits + "-.", min_size=1, max_size=8)


def short(principal: str, *rules: str) -> str:
    return ShortNamer(REALM, rules).short_name(parse(principal))


@pytest.mark.parametrize(
    ("principal", "rules", "expected"),
    [
        ("alice@EXAMPLE.COM", ["DEFAULT"], "alice"),
        ("kafka/host.example.com@EXAMPLE.COM", ["DEFAULT"], "kafka"),
        ("alice", ["DEFAULT"], "alice"),
        ("alice", [], "alice"),
        ("alice@OTHER", ["RULE:[1:$1]"], "alice"),
        ("alice@OTHER", ["RULE:[1:$1-$0]"], "alice-OTHER"),
        ("alice@OTHER", ["RULE:[1:$1@$0](.*@OTHER)s/@.*//"], "alice"),
        ("alice@OTHER", ["RULE:[1:$1@$0](.*@OTHER)s/@.*///U"], "ALICE"),
        ("Alice@OTHER", ["RULE:[1:$1]/L"], "alice"),
        ("Alice@OTHER", ["RULE:[1:$1]L"], "alice"),
        ("alice@OTHER", ["DEFAULT", "RULE:[2:$1]", "RULE:[1:other]"], "other"),
        ("kafka/host@OTHER", ["RULE:[1:one]", "RULE:[2:$1.$2]"], "kafka.host"),
        ("banana@X", ["RULE:[1:$1]s/a/o/"], "bonana"),
        ("banana@X", ["RULE:[1:$1]s/a/o/g"], "bonono"),
        ("banana@X", ["RULE:[1:$1]s/(b)(a)/$2$1/"], "abnana"),
        ("banana@X", ["RULE:[1:$1]s/(?<first>b)a/${first}e/"], "benana"),
        ("banana@X", ["RULE:[1:$1]s/banana//"], ""),
        ("a@X", ["RULE:[1:$1](b|c)", "RULE:[1:rest]"], "rest"),
        ("ab@X", ["RULE:[1:$1](a)", "RULE:[1:rest]"], "rest"),  # the whole is matched
    ],
)
def test_rules(principal: str, rules: list[str], expected: str) -> None:
    """As Kafka's KerberosShortNamer does; the first rule that applies counts."""
    assert short(principal, *rules) == expected


@pytest.mark.parametrize(
    ("principal", "rules", "told"),
    [
        ("alice@OTHER", ["DEFAULT"], "no rule of sasl.kerberos.principal.to.local.rules applies to alice@OTHER"),
        ("a/b@EXAMPLE.COM", ["RULE:[1:$1]"], "no rule"),
        ("alice@EXAMPLE.COM", ["RULE:[1:$1@$0]"], "makes alice@EXAMPLE.COM"),
        ("a/b@EXAMPLE.COM", ["RULE:[2:$1/$2]", "DEFAULT"], "makes a/b"),
        ("a/b/c@EXAMPLE.COM", ["DEFAULT"], "malformed"),
        ("a@b@c", ["DEFAULT"], "malformed"),
    ],
)
def test_principals_without_a_short_name(principal: str, rules: list[str], told: str) -> None:
    with pytest.raises(NoShortName, match=re.escape(told)):
        short(principal, *rules)


@pytest.mark.parametrize(
    "rule",
    [
        " ",
        "default",
        "DEFAULT ",
        "RULE:[1:$1",
        "RULE:[:$1]",
        "RULE:[x:$1]",
        "RULE:[1:$1]X",
        "RULE:[1:$1]/L/U",
        "RULE:[1:$1](a",
        "RULE:[1:$1]s/a/b",
        "RULE:[1:$2]",
        "RULE:[1:$]",
        "RULE:[1:$1]([)",
        "RULE:[1:$1]s/a/$1/",
        "RULE:[1:$1]s/a/$/",
        r"RULE:[1:$1]s/\p{L}/b/",
    ],
)
def test_rules_that_are_refused(rule: str) -> None:
    """At the start, with the rule in the text."""
    with pytest.raises(RuleError, match=re.escape(rule)):
        ShortNamer(REALM, ["DEFAULT", rule])


@given(COMPONENT, st.none() | COMPONENT, COMPONENT)
def test_names_are_read_as_written(service: str, host: str | None, realm: str) -> None:
    name = KerberosName(service, host, realm)
    assert parse(str(name)) == name


@given(COMPONENT, st.none() | COMPONENT, COMPONENT)
def test_default_is_for_one_realm(service: str, host: str | None, realm: str) -> None:
    """Its result is the first component; another realm has none, whatever it is."""
    name = KerberosName(service, host, realm)
    assert ShortNamer(realm, ["DEFAULT"]).short_name(name) == service
    with pytest.raises(NoShortName):
        ShortNamer(f"{realm}X", ["DEFAULT"]).short_name(name)


@given(WORD, WORD, WORD, st.lists(st.sampled_from(["$0", "$1", "$2", "-", "x"]), max_size=6), st.sampled_from("LU "))
def test_formats_are_filled_in(service: str, host: str, realm: str, parts: list[str], case: str) -> None:
    """Each parameter is replaced once: a `$` in a component is no parameter."""
    values = {"$0": realm, "$1": service, "$2": host}
    expected = "".join(values.get(part, part) for part in parts)
    expected = {"L": expected.lower(), "U": expected.upper(), " ": expected}[case]
    rule = f"RULE:[2:{''.join(parts)}]/{case.strip()}"
    assert ShortNamer(REALM, [rule]).short_name(KerberosName(service, host, realm)) == expected


@given(WORD, WORD, WORD, st.booleans())
def test_substitutions(before: str, found: str, after: str, is_all: bool) -> None:
    """The first place, or with g every one, of what `from` finds, which is a literal text here."""
    name = f"{before}{found}{after}{found}"
    rule = f"RULE:[1:$1]s/{re.escape(found)}/_/{'g' if is_all else ''}"
    expected = name.replace(found, "_", -1 if is_all else 1)
    assert ShortNamer(REALM, [rule]).short_name(KerberosName(name, None, "X")) == expected


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from(["DEFAULT", "RULE:[1:$1]"])),
)
def test_short_names_are_simple(principal: str, rules: list[str]) -> None:
    """Whatever a client is called: a short name, without / and @ if there is a realm, or NoShortName."""
    try:
        found = short(principal, *rules)
    except NoShortName:
        return
    assert "@" not in principal or not re.search("[/@]", found)
