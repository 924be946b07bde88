"""Kerberos: a key distribution center of Debian's krb5-kdc with a realm of its own, on loopback, for tests.

Everything is in a temporary folder: the database, the configuration, and the key tables of principals. The files of the
machine (`/etc/krb5.conf`, `/etc/krb5.keytab`) are neither read nor written.
"""

import contextlib
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import Final

from tools.processes import children
from tools.processes.server import ServerProcess, free_ports

REALM: Final = "BARNABAS.TEST"

_KDC: Final = f"""[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:%(port)d
[realms]
    {REALM} = {{
        database_name = %(folder)s/principal
        key_stash_file = %(folder)s/stash
        acl_file = %(folder)s/kadm5.acl
        supported_enctypes = aes256-cts:normal
    }}
"""

_CLIENTS: Final = f"""[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:%(port)d
    }}
"""


class KerberosMissing(Exception):
    """The programs of krb5-kdc are not installed."""


def find_program(name: str) -> str:
    """One of krb5-kdc's or krb5-admin-server's programs, which Debian keeps in /usr/sbin. Raises KerberosMissing."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise KerberosMissing(f"{name} is not installed (Debian: apt-get install krb5-kdc krb5-admin-server)")
    return found


class KerberosServer(ServerProcess):
    """The center of the realm REALM; a context manager. Raises KerberosMissing."""

    title = "Kerberos"

    def __init__(self) -> None:
        self._kdc, self._kadmin, self._kdb5_util = map(find_program, ("krb5kdc", "kadmin.local", "kdb5_util"))
        super().__init__()
        (self._port,) = free_ports(1)
        settings = {"port": self._port, "folder": self._folder}
        (self._folder / "kdc.conf").write_text(_KDC % settings)
        self.client_file = self._folder / "krb5.conf"
        """The krb5.conf for clients and brokers."""
        self.client_file.write_text(_CLIENTS % settings)
        self.environment = {
            "KRB5_CONFIG": str(self.client_file),
            "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf"),
            "KRB5RCACHENAME": f"dfl:{self._folder}",
            "KRB5CCNAME": "MEMORY:",
        }
        self._run(self._kdb5_util, "create", "-s", "-r", REALM, "-P", secrets.token_hex(16))

    def key_table(self, principal: str) -> Path:
        """Make a principal of the realm, with a random key, and a key table that has it."""
        path = self._folder / f"{principal.replace('/', '.')}.keytab"
        for query in (f"addprinc -randkey {principal}", f"ktadd -k {path} {principal}"):
            self._run(self._kadmin, "-r", REALM, "-q", query)
        return path

    def _run(self, *command: str) -> None:
        children.run(command, env={**os.environ, **self.environment}, check=True, capture_output=True)

    def _command(self) -> list[str]:
        return [self._kdc, "-n", "-r", REALM]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False
