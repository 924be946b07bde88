"""Principals of client certificates: names as Java writes them, and the rules of KIP-371."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.principal_mapping import NoMatchingRule, PrincipalMapping, subject_name

ALICE = "CN=alice,OU=Sales,O=Example,C=DE"


def name_of(*parts: list[tuple[x509.ObjectIdentifier, str]]) -> str:
    relative = [x509.RelativeDistinguishedName([x509.NameAttribute(*each) for each in part]) for part in parts]
    return subject_name(x509.Name(relative).public_bytes())


def test_names_are_those_of_java() -> None:
    """Compared with X500Principal.getName of Java 17."""
    common, organization = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
    assert name_of([(organization, "Example")], [(common, "alice")]) == "CN=alice,O=Example"
    assert name_of([(common, 'a,b+c="d";<e>\\#')]) == 'CN=a\\,b\\+c\\=\\"d\\"\\;\\<e\\>\\\\\\#'
    assert name_of([(common, "  two\r ")]) == "CN=\\ \\ two\\\r\\ "
    assert name_of([(common, "é\0日")]) == "CN=é\\00日"
    assert name_of([(common, "a"), (NameOID.USER_ID, "b")]) in ("CN=a+UID=b", "UID=b+CN=a")
    assert name_of([(NameOID.EMAIL_ADDRESS, "a@b")]) == "1.2.840.113549.1.9.1=#1603614062"
    assert name_of([(NameOID.SERIAL_NUMBER, "12")]) == "2.5.4.5=#13023132"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", ALICE, ALICE),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/", ALICE, "alice"),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/U", ALICE, "ALICE"),
        ("RULE:^CN=(.*?),.*$/$1@other/L,DEFAULT", "CN=Bob,O=Example", "bob@other"),
        ("RULE:^CN=nobody.*$/x/, DEFAULT", ALICE, ALICE),
        ("RULE:^CN=(.*?), *OU=(.*?),.*$/$2\\/$1/", ALICE, "Sales/alice"),
        ("RULE:^(?<who>CN=[^,]*),.*$/${who}/", ALICE, "CN=alice"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*)$/$1@$5/", ALICE, "alice@$5"),
        ("RULE:^CN=(.*?),.*$/$12/", ALICE, "alice2"),
        ("RULE:.*/x/", ALICE, "xx"),
        ("RULE:^CN=(\\w+).*$/\\$$1/", ALICE, "$alice"),
    ],
)
def test_rules(rules: str, name: str, principal: str) -> None:
    """`.*` is replaced at the end once more, as Java's replaceAll does."""
    assert PrincipalMapping(rules).apply(name) == principal


def test_no_rule_applies() -> None:
    with pytest.raises(NoMatchingRule, match=r"no rule of ssl\.principal\.mapping\.rules applies"):
        PrincipalMapping("RULE:^CN=nobody$/x/").apply(ALICE)


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:(/x/",
        "RULE:x",
        "DEFAULTS",
        "RULE:a/b/X",
        "RULE:a/$/",
        "RULE:a/$x/",
        f"RULE:a{{{10**12}}}/x/",
        f"RULE:{'(' * 5_000}{')' * 5_000}/x/",
    ],
    ids=lambda rules: rules[:20],
)
def test_rules_that_cannot_be_used(rules: str) -> None:
    with pytest.raises(TlsConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


@pytest.mark.parametrize("name", ["", "30", "3003", "3005310330", "30053103300106", "300b3109300706028080130141", "31"])
def test_bytes_that_are_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"element|identifier|values to unpack"):
        subject_name(bytes.fromhex(name))


def test_a_certificate_that_cannot_be_read() -> None:
    """OpenSSL may accept one that cryptography does not: the connection ends as without a rule for it."""
    with pytest.raises(NoMatchingRule, match="cannot be read"):
        PrincipalMapping("DEFAULT").principal_of(b"0\x00")
