"""Data pipelines in PySpark on Spark's own Kafka source and sink: see docs/spark-pipelines.md."""

import importlib.util
import signal
import sys
from typing import Final

INSTALL: Final = "pip install 'barnabas[spark]' (in a clone: pip install -e '.[spark]')"

if sys.argv[:1] == ["-m"]:  # one of its programs is being started
    # Until it waits for Ctrl-C itself (`pipeline.run_program`), Ctrl-C ends it without a traceback of half an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if importlib.util.find_spec("pyspark") is None:
        sys.exit(f"The Spark pipelines need PySpark: {INSTALL}")
