"""A login by GSSAPI, message by message, with the package gssapi: `python -m compat_tests.sasl.gssapi_client HOST:PORT
PRINCIPAL KEY_TABLE WAY`. It prints, as JSON, the last response, and whether a request is served afterwards.

The way is "right", or the one in which something is wrong: "layer" asks for integrity, "early" sends its choice where
nothing is expected, "garbage" sends no token, "replayed" sends a token of a login that was complete.
"""

import asyncio
import json
import sys
from typing import Any, Final

import gssapi

from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.sasl_clients import Wire

NO_LAYER: Final = b"\1\0\0\0"
INTEGRITY: Final = b"\2\0\xff\xff"


def new_context(principal: str, key_table: str) -> Any:
    """A context for the service kafka on localhost."""
    credentials = gssapi.Credentials(
        name=gssapi.Name(principal, gssapi.NameType.kerberos_principal),
        usage="initiate",
        store={"client_keytab": f"FILE:{key_table}", "ccache": "MEMORY:client"},
    )
    service = gssapi.Name("kafka@localhost", gssapi.NameType.hostbased_service)
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    return gssapi.SecurityContext(name=service, creds=credentials, usage="initiate", flags=flags)


async def log_in(wire: Wire, context: Any, way: str, token: bytes) -> Any:
    """The last response of a login."""

    async def say(message: bytes) -> Any:
        return await wire.ask(SaslAuthenticateRequest(auth_bytes=message), 2)

    handshake = await wire.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert handshake.error_code == 0, handshake
    response = await say(b"garbage" if way == "garbage" else token)
    if response.error_code:
        return response
    if way == "replayed":
        return await say(b"")
    assert context.step(bytes(response.auth_bytes)) is None
    assert context.complete
    response = await say(NO_LAYER if way == "early" else b"")
    if response.error_code:
        return response
    offer = context.unwrap(bytes(response.auth_bytes))
    assert (offer.message, offer.encrypted) == (NO_LAYER, False), offer
    choice = INTEGRITY if way == "layer" else NO_LAYER
    return await say(context.wrap(choice, False).message)


async def main(address: str, principal: str, key_table: str, way: str) -> None:
    """Log in, for the way "replayed" twice with the same token."""
    host, _, port = address.rpartition(":")
    context = new_context(principal, key_table)
    token = context.step()
    for each in ("right", "replayed") if way == "replayed" else (way,):
        reader, writer = await asyncio.open_connection(host, int(port))
        wire = Wire(reader, writer)
        response = await log_in(wire, context, each, token)
        found = {"error": response.error_code, "message": response.error_message}
        if response.error_code == 0:
            found["is_served"] = bool((await wire.ask(MetadataRequest(), 8)).brokers)
        writer.close()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
