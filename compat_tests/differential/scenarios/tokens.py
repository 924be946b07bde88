"""Delegation tokens on a listener without SASL, where none is issued; `test_tokens.py` has the other listener."""

from collections.abc import Callable

from barnabas.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from barnabas.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from compat_tests.differential.run import Run


def tokens_over_plaintext(run: Run) -> None:
    for type_, name in (("", ""), (None, None), ("User", "bob"), ("Group", "bob")):
        renewers = [CreatableRenewers(principal_type="Group", principal_name="bob")]
        for each in ([], renewers):
            run.sweep(
                CreateDelegationTokenRequest(
                    owner_principal_type=type_, owner_principal_name=name, renewers=each, max_lifetime_ms=-1
                )
            )
    for hmac in (b"", b"unknown"):
        for period_ms in (-1, 0, 1):
            run.sweep(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))
            run.sweep(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))
    owner = DescribeDelegationTokenOwner(principal_type="User", principal_name="alice")
    for owners in (None, [], [owner]):
        run.sweep(DescribeDelegationTokenRequest(owners=owners))


SCENARIOS: tuple[Callable[[Run], None], ...] = (tokens_over_plaintext,)
