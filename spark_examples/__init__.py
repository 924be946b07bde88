"""Data pipelines in PySpark on Spark's own Kafka source and sink: see docs/spark-pipelines.md.

Nothing else in the package imports this one. Each pipeline is a program:

- `stream_wordcount.py` counts words (the shortest one); `flight_delays.py` has statistics per carrier and day.
- `dedupe.py` writes repeated events once; `enrich_join.py` joins two streams, and tables.
- `retry_and_dead_letter.py` retries failed records; `retry_handler.py` is what it asks of a handler.
- `capacity_report.py` reports what a queue carries, with the plots of `charts.py`.
- `archive.py` copies topics to Parquet. `archive_log.py` has the format of an archive, `archive_reader.py` reads one,
  `archive_audit.py` proves that one is complete, with `queue_gaps.py`, which explains offsets without a record.
- `replay.py` writes a range of an archive back to a topic.
- `demo.py` is the demonstration: a year of flights, a Spark job and a consumer group, compared with the file.

The pipelines share:

- `pipeline.py`: options, the way to Kafka, progress, the stop; `session.py`: the Spark session with its connector.
- `connection.py`: TLS and users, by the options of Barnabas' commands.
- `exactly_once.py`: records and progress in one transaction; `offsets.py`: offsets as Spark writes them.
- `topics.py`: what is missing in the cluster, before Spark starts; `signals.py`: SIGINT and SIGTERM.
- `filesystem.py`: small files at a URI; `modules.py`: the package as a zip file for workers.
- `sample.py` and `flights.py`: the sample input. `java.py` and `ivy.py`: Java and its libraries, for `tools/`, too.

A new pipeline is a file whose docstring has a line `make spark NAME=...`, a row in `docs/spark-pipelines.md` and a test
in `compat_tests/spark/pipelines/`; `tests/test_tiers.py` checks that the gate runs it.
"""

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
