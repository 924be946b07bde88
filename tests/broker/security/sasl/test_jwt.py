"""Which tokens are accepted: signatures, algorithms, keys, and claims."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from barnabas.broker.security.sasl.jwt import Claims, JwtValidator, check_claims
from barnabas.broker.security.sasl.oauthbearer import InvalidToken, Token
from barnabas.broker.security.sasl.unsecured_jwt import UnsecuredJwtValidator
from barnabas.clock import ManualClock

NOW_S: Final = 1_000_000
CLAIMS: Final = {"sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 60}
RSA: Final = RSAKey.generate_key(2048, {"kid": "rsa"})
EC: Final = {256: ECKey.generate_key("P-256"), 384: ECKey.generate_key("P-384"), 512: ECKey.generate_key("P-521")}
ED: Final = OKPKey.generate_key("Ed25519")
ALL: Final[dict[str, Key]] = {
    **{f"{family}{bits}": RSA for family in ("RS", "PS") for bits in (256, 384, 512)},
    **{f"ES{bits}": key for bits, key in EC.items()},
}

pytestmark = pytest.mark.anyio


class Keys:
    """The issuer's keys; the newer ones are known after a refresh."""

    def __init__(self, keys: Mapping[str, Key], newer: Mapping[str, Key] | None = None) -> None:
        self._keys, self._newer = keys, keys if newer is None else newer
        self.refreshes = 0

    async def keys(self) -> Mapping[str, Key]:
        return self._keys

    async def newer_keys(self) -> Mapping[str, Key]:
        self.refreshes += 1
        return self._newer


def signed(claims: Mapping[str, Any], key: Key = RSA, algorithm: str = "RS256", **header: Any) -> str:
    fields = {"alg": algorithm, "kid": "rsa", **header}
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jwt.encode({name: value for name, value in fields.items() if value}, claims, key, registry=registry)


def part(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def signed_by_hand(header: dict[str, Any]) -> str:
    """A token with a header that joserfc does not write, and an Ed25519 signature."""
    signing = f"{part(header)}.{part(CLAIMS)}"
    key: Any = ED.private_key
    return f"{signing}.{urlsafe_b64encode(key.sign(signing.encode())).decode().rstrip('=')}"


def validator(expected: Claims | None = None, keys: Mapping[str, Key] | None = None) -> JwtValidator:
    return JwtValidator(Keys(keys or {"rsa": RSA}), expected or Claims(), ManualClock(NOW_S * 1000))


@pytest.mark.parametrize("algorithm", sorted(ALL))
async def test_algorithms(algorithm: str) -> None:
    """Each allowed algorithm; issuers may have header fields of their own."""
    key = ALL[algorithm]
    token = signed(CLAIMS, key, algorithm, nonce="x")
    assert await validator(keys={"rsa": key}).validate(token) == Token("alice", (NOW_S + 60) * 1000)


async def test_eddsa() -> None:
    """EdDSA, for which joserfc would emit a warning."""
    token = signed_by_hand({"alg": "EdDSA", "kid": "ed"})
    assert (await validator(keys={"ed": ED}).validate(token)).principal == "alice"


async def test_no_algorithm_of_the_client() -> None:
    """Neither `none`, nor the public key as the secret of an HMAC."""
    unsigned = f"{part({'alg': 'none'})}.{part(CLAIMS)}."
    secret = OctKey.import_key(RSA.as_dict(private=False)["n"])
    forged = signed(CLAIMS, secret, "HS256")
    for token in (unsigned, forged, unsigned.replace(part({"alg": "none"}), part({"alg": "NONE"}))):
        with pytest.raises(InvalidToken):
            await validator().validate(token)


async def test_forged_tokens() -> None:
    """Another key, a changed claim, no token at all."""
    other = RSAKey.generate_key(2048)
    header, payload, signature = signed(CLAIMS).split(".")
    tokens = [
        signed(CLAIMS, other),
        f"{header}.{part({**CLAIMS, 'sub': 'admin'})}.{signature}",
        f"{header}.{payload}.",
        f"{header}.{payload}",
        f"{part([])}.{payload}.{signature}",
        f"{part({'alg': 5})}.{payload}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 5})}.{payload}.{signature}",
        signed(CLAIMS, ALL["ES256"], "ES256"),
        signed_by_hand({"alg": "EdDSA", "kid": "ed", "crit": ["exp"], "exp": 1}),
        signed_by_hand({"alg": "EdDSA", "kid": "ed", "b64": True}),
        "a.b.c",
        "[" * 50_000,
        f"{urlsafe_b64encode(b'[' * 6000).decode()}.{payload}.{signature}",
    ]
    for token in tokens:
        with pytest.raises(InvalidToken):
            await validator(keys={"rsa": RSA, "ed": ED}).validate(token)


async def test_keys_of_the_issuer() -> None:
    """An unknown key id has the keys refreshed once; without an id the only key counts."""
    token = signed(CLAIMS)
    keys = Keys({"old": ALL["ES256"]}, {"rsa": RSA})
    clock = ManualClock(NOW_S * 1000)
    assert (await JwtValidator(keys, Claims(), clock).validate(token)).principal == "alice"
    assert keys.refreshes == 1
    for header in ({"kid": "other"}, {"kid": None}):
        with pytest.raises(InvalidToken):
            await validator(keys={"rsa": RSA, "ec": ALL["ES256"]}).validate(signed(CLAIMS, **header))
    assert (await validator().validate(signed(CLAIMS, kid=None))).principal == "alice"


async def test_a_key_for_one_algorithm() -> None:
    """A key's own `alg` is kept."""
    key = RSAKey.import_key({**RSA.as_dict(private=False), "alg": "PS256"})  # type: ignore[arg-type]
    with pytest.raises(InvalidToken):
        await validator(keys={"rsa": key}).validate(signed(CLAIMS))
    assert await validator(keys={"rsa": key}).validate(signed(CLAIMS, algorithm="PS256"))


EXPECTED: Final = Claims(frozenset({"kafka", "other"}), "https://issuer", 30)


@pytest.mark.parametrize(
    ("claims", "is_valid"),
    [
        ({}, True),
        ({"exp": NOW_S - 29, "iat": NOW_S - 90}, True),
        ({"exp": NOW_S - 30, "iat": NOW_S - 90}, False),
        ({"exp": None}, False),
        ({"exp": "never"}, False),
        ({"exp": True}, False),
        ({"exp": float("inf")}, False),
        ({"exp": 10**300}, False),
        ({"iat": None}, False),
        ({"iat": NOW_S + 61}, False),
        ({"nbf": NOW_S + 30}, True),
        ({"nbf": NOW_S + 31}, False),
        ({"aud": "kafka"}, True),
        ({"aud": ["x", 5, "other"]}, True),
        ({"aud": "x"}, False),
        ({"aud": []}, False),
        ({"aud": None}, False),
        ({"aud": {"kafka": 1}}, False),
        ({"iss": "https://other"}, False),
        ({"iss": None}, False),
        ({"sub": None}, False),
        ({"sub": " "}, False),
        ({"sub": 5}, False),
        ({"scope": "a b"}, True),
        ({"scope": ["a", "b"]}, True),
        ({"scope": ["a", "a"]}, False),
        ({"scope": [5]}, False),
    ],
)
async def test_claims(claims: dict[str, Any], is_valid: bool) -> None:
    """The claims that jose4j and Kafka require, within the clock skew."""
    complete = {"aud": "kafka", "iss": "https://issuer", **CLAIMS, **claims}
    token = signed({name: value for name, value in complete.items() if value is not None})
    if is_valid:
        assert (await validator(EXPECTED).validate(token)).principal == "alice"
    else:
        with pytest.raises(InvalidToken):
            await validator(EXPECTED).validate(token)


@pytest.mark.parametrize(("name", "is_valid"), [("whole \U0001f600", True), ("half \ud83d", False)])
async def test_half_a_character(name: str, is_valid: bool) -> None:
    """JSON can have one: a name with it could be in no znode, and in no log."""
    if is_valid:
        assert check_claims({**CLAIMS, "sub": name}, Claims(), NOW_S * 1000).principal == name
    else:
        with pytest.raises(InvalidToken, match="sub"):
            check_claims({**CLAIMS, "sub": name}, Claims(), NOW_S * 1000)


async def test_unexpected_audience() -> None:
    """A token for somebody is refused where no audience is configured, as by jose4j."""
    with pytest.raises(InvalidToken, match="audience"):
        await validator().validate(signed({**CLAIMS, "aud": "kafka"}))


async def test_names_of_claims() -> None:
    """The principal comes from the configured claim."""
    expected = Claims(sub_claim_name="client", scope_claim_name="scp")
    assert (await validator(expected).validate(signed({**CLAIMS, "client": " app "}))).principal == "app"


def unsecured(claims: Any, header: Any = None, signature: str = "") -> str:
    return f"{part(header or {'alg': 'none'})}.{part(claims)}.{signature}"


async def test_unsecured() -> None:
    """The options of OAuthBearerUnsecuredValidatorCallbackHandler."""
    options = {
        "unsecuredValidatorPrincipalClaimName": "user",
        "unsecuredValidatorScopeClaimName": "scp",
        "unsecuredValidatorRequiredScope": "a b",
        "unsecuredValidatorAllowableClockSkewMs": "2000",
    }
    ours = UnsecuredJwtValidator(options, ManualClock(NOW_S * 1000))
    claims = {"user": "bob", "exp": NOW_S - 1, "iat": NOW_S - 5, "scp": ["a", "b", "c"]}
    assert await ours.validate(unsecured(claims)) == Token("bob", (NOW_S - 1) * 1000)
    for bad in (
        unsecured({**claims, "exp": NOW_S - 2}),
        unsecured({**claims, "iat": NOW_S + 3}),
        unsecured({**claims, "exp": None}),
        unsecured({**claims, "exp": 1e300}),
        unsecured({**claims, "user": 5}),
        unsecured({**claims, "user": "half \ud83d"}),
        unsecured(claims, {"alg": "RS256"}),
        unsecured(claims, signature="eA"),
        unsecured([]),
        "..",
        "a",
    ):
        with pytest.raises(InvalidToken):
            await ours.validate(bad)
    with pytest.raises(InvalidToken) as refused:
        await ours.validate(unsecured({**claims, "scp": "a"}))
    assert json.loads(refused.value.to_json()) == {"status": "insufficient_scope", "scope": "[a, b]"}
    with pytest.raises(ValueError, match="negative"):
        UnsecuredJwtValidator({"unsecuredValidatorAllowableClockSkewMs": "-1"}, ManualClock())
