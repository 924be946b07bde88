"""The principal of a client certificate: its subject, through the rules of `ssl.principal.mapping.rules` (KIP-371).

The subject is written as Java's `X500Principal.getName` does (RFC 2253): the last part first, names for nine types of
attributes, `#` and hexadecimal digits for the values of all others. Rules apply to that text, so that those written for
Kafka have the same results. Source: SslPrincipalMapper, DefaultKafkaPrincipalBuilder; sun.security.x509.AVA.

The regular expressions are the administrator's (`broker/security/java_patterns.py`), and are applied to subjects that a
trusted authority has signed.
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.broker.security.java_patterns import PatternError, Replacement, compile_pattern
from barnabas.broker.security.tls.errors import TlsConfigError

KEY: Final = "ssl.principal.mapping.rules"

_TYPES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}

_TEXT_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""The encodings of the string types of ASN.1 that Java writes as text."""

_SPECIAL: Final = re.compile(r'[,=+<>#;"\\]')
_PART: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)"
_SPLIT: Final = re.compile(rf"\s*((?:{_PART}).*?|.*?)\s*(?:,\s*|$)")
_RULE: Final = re.compile(_PART)


class NoMatchingRule(Exception):
    """No rule applies to a subject: Kafka ends the connection."""


class PrincipalMapping:
    """The rules of one listener, in their order."""

    def __init__(self, rules: str) -> None:
        """Errors: TlsConfigError."""
        texts = [found[1] for found in _SPLIT.finditer(rules.strip())]
        self._rules = [_Rule(text) for text in texts if text]

    def principal_of(self, certificate: bytes) -> str:
        """The principal of a client with this certificate (DER): "User:CN=alice,O=Example". Raises NoMatchingRule, also
        for one that OpenSSL has accepted, and that cannot be read here."""
        try:
            name = subject_of(certificate)
        except ValueError as error:
            raise NoMatchingRule(f"the subject of a certificate cannot be read: {error}") from error
        return f"User:{self.apply(name)}"

    def apply(self, name: str) -> str:
        """The result of the first rule that applies. Raises NoMatchingRule."""
        for rule in self._rules:
            if (found := rule.apply(name)) is not None:
                return found
        raise NoMatchingRule(f"no rule of {KEY} applies to {name}")


class _Rule:
    """DEFAULT, or RULE:pattern/replacement/ with L or U."""

    def __init__(self, text: str) -> None:
        found = _RULE.fullmatch(text)
        if found is None:
            raise TlsConfigError(f"{KEY}: {text} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        self._pattern: re.Pattern[str] | None = None
        if found[1] is not None:
            return
        try:
            self._pattern = compile_pattern(found[2])
            self._replacement = Replacement(found[3], self._pattern)
        except PatternError as error:
            raise TlsConfigError(f"{KEY}: {error}") from error
        self._case = found[4]

    def apply(self, name: str) -> str | None:
        """The new name; None if the pattern does not match the whole of `name`.

        As in Kafka, the pattern is then replaced wherever it is found, so that `.*` without `^` is replaced once more
        at the end.
        """
        if self._pattern is None:
            return name
        if self._pattern.fullmatch(name) is None:
            return None
        replaced = self._pattern.sub(self._replacement.expanded, name)
        return {"L": replaced.lower, "U": replaced.upper}.get(self._case, lambda: replaced)()


# --- names of subjects --------------------------------------------------------------------------------


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER) as text: "CN=alice,O=Example". Errors: ValueError, if it is no certificate."""
    from cryptography import x509

    try:
        return subject_name(x509.load_der_x509_certificate(certificate).subject.public_bytes())
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def subject_name(name: bytes) -> str:
    """An X.501 name (DER) as text, as `X500Principal.getName` writes it. Errors: ValueError, if it is no name."""
    [(_, sequence, _)] = _elements(name)
    parts = []
    for _, relative, _ in _elements(sequence):
        attributes = []
        for _, attribute, _ in _elements(relative):
            (_, type_content, _), (tag, content, whole) = _elements(attribute)
            attributes.append(_attribute(_dotted(type_content), tag, content, whole))
        parts.append("+".join(attributes))
    return ",".join(reversed(parts))


def _attribute(dotted: str, tag: int, content: bytes, whole: bytes) -> str:
    if dotted not in _TYPES or tag not in _TEXT_ENCODINGS:
        return f"{_TYPES.get(dotted, dotted)}=#{whole.hex()}"
    text = content.decode(_TEXT_ENCODINGS[tag], "replace")
    escaped = _SPECIAL.sub(r"\\\g<0>", text).replace("\0", "\\00")
    kept = escaped.lstrip(" \r")
    lead = escaped[: len(escaped) - len(kept)]
    inner = kept.rstrip(" \r")
    outer = [re.sub("[ \r]", r"\\\g<0>", spaces) for spaces in (lead, kept[len(inner) :])]
    return f"{_TYPES[dotted]}={outer[0]}{inner}{outer[1]}"


def _elements(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """The elements of DER: tag, content, and all bytes of each. Raises ValueError."""
    found, position = [], 0
    while position < len(data):
        start, header = position, data[position : position + 2]
        position += 2
        length = header[1] if len(header) == 2 else len(data)
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("an element is longer than its content")
        tag = header[0]
        found.append((tag, data[position : position + length], data[start : position + length]))
        position += length
    return found


def _dotted(content: bytes) -> str:
    """An object identifier as text. Raises ValueError."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an object identifier without an end")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
