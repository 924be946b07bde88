"""SaslHandshake and SaslAuthenticate on a listener without SASL, and SCRAM credentials of users."""

from collections.abc import Callable

from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from barnabas.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from compat_tests.differential.run import Run

SCRAM_SHA_256 = 1


def credentials_of_logins(run: Run) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "no-such"):
        run.sweep(SaslHandshakeRequest(mechanism=mechanism))
    run.sweep(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))


def credentials_of_users(run: Run) -> None:
    run.sweep(DescribeUserScramCredentialsRequest(users=None))
    run.sweep(DescribeUserScramCredentialsRequest(users=[UserName(name="nobody"), UserName(name="")]))
    run.sweep(DescribeUserScramCredentialsRequest(users=[UserName(name="twice"), UserName(name="twice")]))
    for mechanism in (SCRAM_SHA_256, 0, 9):
        deletion = ScramCredentialDeletion(name="nobody", mechanism=mechanism)
        run.sweep(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


SCENARIOS: tuple[Callable[[Run], None], ...] = (credentials_of_logins, credentials_of_users)
