"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), by the processor's instruction: the checksum of batches and own files.

It is the `crc32c` package's extension module, loaded without the package's `__init__`, which reads its own version from
its metadata and so imports e-mail and zip parsers: 10 ms and 1 MiB of a start that are not needed.
"""

import importlib
import importlib.machinery
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c


def _load() -> Any:
    package = importlib.util.find_spec("crc32c")  # finds it without importing it
    places = package.submodule_search_locations if package is not None else None
    spec = importlib.machinery.PathFinder.find_spec("_crc32c", places)
    if spec is None or spec.loader is None:  # built differently: import it like any package
        return importlib.import_module("crc32c")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    crc32c = _load().crc32c
