"""The names of Kerberos principals, and the rules by which they become short ones
(`sasl.kerberos.principal.to.local.rules`).

Source: KerberosName, KerberosShortNamer and KerberosRule of Kafka. A rule is DEFAULT, or
`RULE:[n:format](pattern)s/from/to/g` with `/L` or `/U` at its end: for a principal of n components the format is filled
in ($0 is the realm, $1 the first component), and if the pattern, which may be missing, matches the whole of the result,
what `from` finds in that is replaced. The first rule that applies counts. Unlike in Kafka, a format or a replacement
that names what does not exist is refused at the start, and not at each login.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.broker.security.java_patterns import PatternError, Replacement, compile_pattern

KEY: Final = "sasl.kerberos.principal.to.local.rules"

_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)"
    r"|RULE:\[(?P<count>[0-9]*):(?P<format>[^\]]*)](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$([0-9]*)")


class NoShortName(Exception):
    """A principal is malformed, or no rule applies to it: the login fails."""


class RuleError(ValueError):
    """A rule that cannot be used."""


class KerberosName(NamedTuple):
    """SERVICE/HOST@REALM, or USER@REALM; without a realm the name is the first component as it is."""

    service: str
    host: str | None
    realm: str | None

    def __str__(self) -> str:
        host = "" if self.host is None else f"/{self.host}"
        realm = "" if self.realm is None else f"@{self.realm}"
        return f"{self.service}{host}{realm}"


def parse(principal: str) -> KerberosName:
    """The components of a principal. Raises NoShortName."""
    found = _NAME.fullmatch(principal)
    if found is not None:
        return KerberosName(*found.groups())
    if "@" in principal:
        raise NoShortName(f"the Kerberos name {principal} is malformed")
    return KerberosName(principal, None, None)


class ShortNamer:
    """The rules, in their order. `default_realm` is that of DEFAULT. Raises RuleError."""

    def __init__(self, default_realm: str, rules: Sequence[str]) -> None:
        self._rules = [_Rule(default_realm, rule) for rule in rules]

    def short_name(self, name: KerberosName) -> str:
        """The result of the first rule that applies. Raises NoShortName."""
        if name.realm is None and name.host is None:
            return name.service
        parameters = [name.realm or "", name.service, *([] if name.host is None else [name.host])]
        for rule in self._rules:
            if (found := rule.apply(parameters)) is not None:
                return found
        raise NoShortName(f"no rule of {KEY} applies to {name}")


class _Rule:
    def __init__(self, default_realm: str, text: str) -> None:
        self._text = text
        self._default_realm = default_realm
        found = _RULE.match(text)
        if found is None or found.end() != len(text) or (found["default"] is None and not found["count"]):
            raise RuleError(f"{text} is neither DEFAULT nor RULE:[n:format](pattern)s/from/to/g with /L or /U")
        self._is_default = found["default"] is not None
        self._format: str = found["format"] or ""
        self._count = int(found["count"] or 0)
        self._case: str | None = found["case"]
        self._match = self._from = None
        if not self._is_default:
            self._check_format()
        try:
            if found["match"] is not None:
                self._match = compile_pattern(found["match"])
            if found["from"] is not None:
                self._from = compile_pattern(found["from"])
                self._to = Replacement(found["to"], self._from, is_strict=True)
                self._replaced_count = 0 if found["all"] else 1  # 0: all
        except PatternError as error:
            raise RuleError(f"{text}: {error}") from error

    def _check_format(self) -> None:
        for number in _PARAMETER.findall(self._format):
            if not number or int(number) > self._count:
                raise RuleError(f"{self._text}: there is no ${number} among {self._count} components")

    def apply(self, parameters: Sequence[str]) -> str | None:
        """The short name of a principal, whose realm comes first; None if the rule does not apply. Raises
        NoShortName."""
        name = self._applied(parameters)
        if name is None:
            return None
        if "/" in name or "@" in name:
            raise NoShortName(f"the rule {self._text} makes {name}, which has a / or @, of {parameters}")
        return {"L": name.lower, "U": name.upper}.get(self._case or "", lambda: name)()

    def _applied(self, parameters: Sequence[str]) -> str | None:
        if self._is_default:
            return parameters[1] if parameters[0] == self._default_realm else None
        if len(parameters) - 1 != self._count:
            return None
        base = _PARAMETER.sub(lambda found: parameters[int(found[1])], self._format)
        if self._match is not None and self._match.fullmatch(base) is None:
            return None
        if self._from is None:
            return base
        return self._from.sub(self._to.expanded, base, count=self._replaced_count)
