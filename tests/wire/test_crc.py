"""The checksum of batches, and what it does not cost."""

from __future__ import annotations

import subprocess
import sys

from barnabas.wire.crc import crc32c


def test_known_checksums() -> None:
    """RFC 3720 appendix B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(memoryview(bytes(range(32)))[16:], crc32c(bytes(range(16)))) == 0x46DD794E


def test_serve_does_not_import_parsers_of_packages_metadata() -> None:
    """They were a thirtieth of a start, imported by the checksum's package to learn its own version."""
    code = (
        "import sys, barnabas.broker.cli.serve, barnabas.broker.server\n"
        "print(sorted({'crc32c', 'importlib.metadata', 'email', 'zipfile'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
