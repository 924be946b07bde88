"""Short names of Kerberos principals beside Kafka's own class."""

import random
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError

from barnabas.broker.security.sasl.kerberos_names import NoShortName, RuleError, ShortNamer, parse
from tools.jvm.shared import SharedJvm

pytestmark = [pytest.mark.java, pytest.mark.slow]

SEED: Final = 20
REALM: Final = "EXAMPLE.COM"
COMPONENTS: Final = ("alice", "Bob", "kafka", "admin-carol", "a$1", "b.c", "")
REALMS: Final = (REALM, "OTHER", "")
FORMATS: Final = ("$1", "$1@$0", "$1-$2", "$2.$1", "x$1$1", "$0")
PATTERNS: Final = ("", "(.*)", "(.*@OTHER)", "([a-z]+)", "(admin-.*)", "(x)")
SUBSTITUTIONS: Final = (
    "", "s/@.*//", "s/a/o/", "s/a/o/g", "s/admin-(.*)/$1/", "s/b*/-/g", "s/(a)(.)/$2$1/g", r"s/a/\$/",
)  # fmt: skip
CASES: Final = ("", "/L", "/U", "L")
BROKEN: Final = ("RULE:[1:$1", "RULE:[x:$1]", "rule", "RULE:[1:$1]s/a/b", "DEFAULTS", "RULE:[1:$1](a")
NONE: Final = "none"


def rules(choice: random.Random) -> list[str]:
    found = []
    for _ in range(choice.randint(1, 3)):
        if choice.random() < 0.2:
            found.append("DEFAULT")
        elif choice.random() < 0.05:
            found.append(choice.choice(BROKEN))
        else:
            count = choice.choice((1, 2))
            form = choice.choice([each for each in FORMATS if count == 2 or "$2" not in each])
            parts = (choice.choice(PATTERNS), choice.choice(SUBSTITUTIONS), choice.choice(CASES))
            found.append(f"RULE:[{count}:{form}]{''.join(parts)}")
    return found


def principal(choice: random.Random) -> str:
    host = f"/{choice.choice(COMPONENTS)}" * choice.choice((0, 0, 1, 1, 2))
    return f"{choice.choice(COMPONENTS)}{host}" + f"@{choice.choice(REALMS)}" * choice.choice((0, 1, 1, 1, 1))


def ours(principal: str, rules: list[str]) -> str:
    try:
        return ShortNamer(REALM, rules).short_name(parse(principal))
    except (RuleError, NoShortName):
        return NONE


def theirs(kerberos: Any, java_list: Any, principal: str, rules: list[str]) -> str:
    names = java_list()
    for rule in rules:
        names.add(rule)
    try:
        namer = kerberos.KerberosShortNamer.fromUnparsedRules(REALM, names)
        return str(namer.shortName(kerberos.KerberosName.parse(principal)))
    except Py4JJavaError:
        return NONE


def test_short_names(jvm: SharedJvm) -> None:
    """The same name, or none, for each of some principals and rules."""
    choice = random.Random(SEED)
    java = jvm.java
    kerberos, java_list = java.org.apache.kafka.common.security.kerberos, java.java.util.ArrayList
    cases = [(principal(choice), rules(choice)) for _ in range(500)]
    expected = [theirs(kerberos, java_list, *case) for case in cases]
    found = [ours(*case) for case in cases]
    assert [each for each in zip(cases, found, expected, strict=True) if each[1] != each[2]] == []
    assert expected.count(NONE) < 400
