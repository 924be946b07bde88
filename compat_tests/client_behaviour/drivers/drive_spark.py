"""Spark's sink and source, with its executors in the driver's own Java process.

A task that fails is tried again, up to four times in all, as on a cluster. Spark has no groups, commits and
transactions of Kafka's: of those it is asked nothing.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import threading
import time
from functools import partial
from typing import Any

from driver import CLIENT_ID, TOPIC, Outcome, serve

from barnabas.spark_examples.session import spark_session

SETTINGS = {
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    # Each workload has a producer of its own, and the last one's does not go on beside it.
    "spark.kafka.producer.cache.timeout": "100ms",
    "spark.kafka.producer.cache.evictorThreadRunInterval": "100ms",
}
OF_KAFKA = re.compile(r"org\.apache\.kafka\.[a-z.]+\.(\w+)")
OTHERS = re.compile(r"\b([A-Z]\w+(?:Exception|Error))\b")
CLIENTS = itertools.count(1)


def failed(outcome: Outcome, text: str) -> None:
    """The query, or job, ends with an error: of what it says of Kafka the last is the cause."""
    of_kafka = [name for name in OF_KAFKA.findall(text) if name.endswith("Exception")]
    outcome.failed((of_kafka or OTHERS.findall(text) or [text[:60]])[-1])


def options_of(servers: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "kafka.client.id": f"{CLIENT_ID}-{next(CLIENTS)}"}


def produce(spark: Any, servers: str, deadline_s: float, *, idempotence: bool = False) -> Outcome:
    outcome = Outcome()
    sink = spark.range(1).selectExpr("'1' as value").coalesce(1).write.format("kafka").option("topic", TOPIC)
    sink.options(**options_of(servers)).option("kafka.enable.idempotence", str(idempotence).lower())

    def save() -> None:
        try:
            sink.save()
            outcome.is_done = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
            failed(outcome, str(error))

    saving = threading.Thread(target=save, daemon=True)
    saving.start()
    saving.join(deadline_s)
    return outcome


def consume(spark: Any, servers: str, deadline_s: float) -> Outcome:
    outcome = Outcome()
    source = spark.readStream.format("kafka").options(**options_of(servers)).option("subscribe", TOPIC)
    values = source.option("startingOffsets", "earliest").load().selectExpr("cast(value as string) as value")
    with tempfile.TemporaryDirectory() as folder:
        query = values.writeStream.format("memory").queryName("probe").option("checkpointLocation", folder).start()
        deadline = time.monotonic() + deadline_s
        while "1" not in outcome.values and query.isActive and time.monotonic() < deadline:
            outcome.values = [row.value for row in spark.table("probe").collect()]
            time.sleep(0.05)  # Real time: the pace of a program that looks again
        outcome.is_done = "1" in outcome.values
        if query.exception() is not None:
            failed(outcome, str(query.exception()))
        query.stop()
    return outcome


if __name__ == "__main__":
    spark = spark_session("client_behaviour", SETTINGS, master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    serve(
        {
            "produce": partial(produce, spark),
            "idempotent": partial(produce, spark, idempotence=True),
            "consume": partial(consume, spark),
        }
    )
