"""`barnabas certificates`: a certificate authority of one's own, and what is in certificates."""

from __future__ import annotations

import asyncio
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from barnabas.broker.cli.command import Application
from barnabas.broker.cli.output import AsJson, ClientError, complain, print_json, say
from barnabas.clock import SystemClock

if TYPE_CHECKING:
    from cryptography import x509

    from barnabas.broker.cli.authority import Authority

app = Application(help="Certificates for TLS: make them, and look into them.")

DIRECTORY: Final = Path("certificates")
BROKER: Final = "broker"
_RESERVED: Final = (BROKER, "ca", "ca-key")
_FILE_NAME: Final = re.compile(r"\w[\w.@-]*")


@app.command("make")
def make(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files are.")] = DIRECTORY,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name or address of the broker, beside localhost; may be repeated."
        ),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="Make a client's certificate; may be repeated.")
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="For how long certificates are valid.")] = 825,
    renew: Annotated[bool, typer.Option("--renew", help="Replace certificates that exist, but not the CA.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a certificate authority, a certificate of the broker, and certificates of clients.

    The broker's is for this machine's names and addresses, unless --host names others. What exists is kept: a second
    run adds clients, --renew replaces all but the authority. Keep ca-key.pem to yourself: who has it can be anybody.
    A directory gets ca.pem and ca-key.pem; broker.pem, with its key and its chain, for ssl.keystore.location; and for
    each client NAME.pem with certificate and key. The principal of a client is User:CN=NAME.

    [bold]Examples[/bold]

      barnabas certificates make
      barnabas certificates make certificates --client alice --client bob
      barnabas certificates make other --host kafka1.example --host 10.0.0.1 --days 90
      barnabas certificates make certificates --renew --json
    """
    from barnabas.broker.cli.authority import names_of_this_machine

    hosts = host or asyncio.run(names_of_this_machine())
    try:
        made, kept = make_certificates(directory, hosts, client or [], days=days, renew=renew)
    except OSError as error:
        raise ClientError(f"cannot write to {error.filename or directory}: {error.strerror}") from error
    if as_json:
        print_json({"directory": str(directory), "made": made, "kept": kept})
        return
    for name in made:
        say(f"{directory / name}: made")
    for name in kept:
        say(f"{directory / name}: kept")


def make_certificates(
    directory: Path, hosts: list[str], clients: list[str], *, days: int, renew: bool
) -> tuple[list[str], list[str]]:
    """Make what is missing; the values are the files that were made, and those that were kept. Raises: ClientError,
    OSError."""
    from barnabas.broker.cli.authority import (
        CA_FILE,
        CA_KEY_FILE,
        Authority,
        hosts_of,
        make_private_directory,
        write_private,
    )

    for name in clients:
        if name in _RESERVED or _FILE_NAME.fullmatch(name) is None:
            raise ClientError(f"{name!r} cannot be the name of a client's file")
    make_private_directory(directory)
    made, kept = [], []
    now_ms = SystemClock().now_ms()
    if (directory / CA_FILE).exists() or (directory / CA_KEY_FILE).exists():
        authority = _load(directory, now_ms)
        kept += [CA_FILE, CA_KEY_FILE]
    else:
        authority = Authority.new("Barnabas CA", now_ms)
        write_private(directory / CA_KEY_FILE, authority.key)
        write_private(directory / CA_FILE, authority.certificate)
        made += [CA_FILE, CA_KEY_FILE]
    wanted = {BROKER: hosts_of(hosts)} | {name: [] for name in clients}
    if renew:
        wanted |= {name: [] for name in _clients_in(directory) if name not in wanted}
    for name, names in wanted.items():
        file = f"{name}.pem"
        if (directory / file).exists() and not renew:
            kept.append(file)
            continue
        issued = authority.issue(name, names, days=days)
        write_private(directory / file, issued.certificate + authority.certificate + issued.key)
        made.append(file)
    return made, kept


def _clients_in(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.pem") if path.stem not in _RESERVED)


def _load(directory: Path, now_ms: int) -> Authority:
    from barnabas.broker.cli.authority import CA_FILE, CA_KEY_FILE, Authority

    try:
        return Authority.load(directory, now_ms)
    except FileNotFoundError as error:
        raise ClientError(
            f"{error.filename} is missing, and {CA_FILE} and {CA_KEY_FILE} belong together: restore it, or choose"
            " another directory"
        ) from error


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PEM or PKCS12 files.")],
    password: Annotated[
        str, typer.Option("--store-password", metavar="TEXT", help="The password of PKCS12 files.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the certificates in files: for whom, by whom, until when.

    The status is 1 if one has expired.

    [bold]Examples[/bold]

      barnabas certificates show certificates/broker.pem
      barnabas certificates show certificates/ca.pem certificates/alice.pem --json | jq -r '.[].expires'
    """
    from cryptography import x509

    from barnabas.broker.client.security_properties import trusted_certificates

    now = datetime.datetime.fromtimestamp(SystemClock().now_ms() / 1000, datetime.UTC)
    described = []
    for path in files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ClientError(f"cannot read {path}: {error.strerror}") from error
        try:
            found = x509.load_pem_x509_certificates(trusted_certificates(content, password, str(path)))
        except (ValueError, x509.InvalidVersion) as error:
            raise ClientError(f"{path} has a certificate that cannot be read") from error
        described += [_description(path, each, now) for each in found]
    if as_json:
        print_json(described)
    else:
        for each in described:
            _print(each)
    expired = [each for each in described if each["days_left"] < 0]
    for each in expired:
        complain(f"{each['file']}: the certificate of {each['subject']} has expired")
    if expired:
        raise typer.Exit(1)


def _description(path: Path, certificate: x509.Certificate, now: datetime.datetime) -> dict[str, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    from barnabas.broker.cli.authority import names_in

    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    subject = certificate.subject.rfc4514_string()
    return {
        "file": str(path),
        "subject": subject,
        "principal": f"User:{subject}",
        "issuer": certificate.issuer.rfc4514_string(),
        "names": names_in(certificate),
        "is_authority": is_authority,
        "valid_from": certificate.not_valid_before_utc.isoformat(),
        "expires": certificate.not_valid_after_utc.isoformat(),
        "days_left": (certificate.not_valid_after_utc - now).days,
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _print(each: dict[str, Any]) -> None:
    say(f"{each['file']}: {each['subject']}{', a CA' if each['is_authority'] else ''}")
    say(f"  issued by {each['issuer']}")
    if each["names"]:
        say(f"  for {', '.join(each['names'])}")
    say(f"  valid from {each['valid_from']} to {each['expires']}: {each['days_left']} days left")
    say(f"  SHA-256 {each['sha256']}")
    say(f"  principal {each['principal']}")


__all__ = ["app"]
