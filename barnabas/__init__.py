"""Barnabas: a Kafka-wire-compatible message broker in Python.

Five packages (`wire`, `storage`, `controller`, `broker`, `spark_examples`) live at the top of the source tree and are
reached through relative symbolic links in this folder, so that their generic names never land in a user's
site-packages. Archives that cannot hold symbolic links (zip files) turn them into small text files; the check below
says so instead of failing later with a puzzling ImportError.
"""

import os.path

__version__ = "0.1.0"

if os.path.isfile(os.path.join(os.path.dirname(__file__), "wire")):
    raise ImportError(
        "this copy of Barnabas was unpacked without its symbolic links (barnabas/wire is a file): "
        "install it from a wheel, an sdist or a git clone, not from a zip archive"
    )
