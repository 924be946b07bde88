"""Data pipelines beside a message queue, in PySpark on Spark's own Kafka source and sink: see docs/spark.md."""

import signal
import sys

if sys.argv[:1] == ["-m"]:  # one of its programs is being started
    # Until it waits for Ctrl-C itself (`pipeline.run_program`), Ctrl-C ends it without a traceback of half an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
