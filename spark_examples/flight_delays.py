"""A streaming job: flights from one topic, delay statistics per carrier and day to another.

It takes flights as JSON (the fields of `spark_examples.flights.Flight`), keyed by carrier, and writes a new line of
statistics for each carrier and day that a micro-batch touched, keyed `CARRIER|DATE`: the last one of a key is valid.
Figures are sums and counts, so that they can be compared exactly.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

FLIGHT = (
    "carrier string, number int, origin string, destination string, date string, departure_delay int, arrival_delay int"
)
LATE_MINUTES = 15
"""An arrival is late from this many minutes on, as the US Department of Transportation counts."""


def flights_from(spark: SparkSession, bootstrap_servers: str, topic: str, flights_per_batch: int) -> DataFrame:
    """The stream of flights in a topic, from its beginning."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", flights_per_batch)
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")


def delay_statistics(flights: DataFrame) -> DataFrame:
    """Per carrier and day: flights, those that departed, arrived, were late, the minutes of delay, the worst one."""
    return flights.groupBy("carrier", "date").agg(
        f.count("*").alias("flights"),
        f.count("departure_delay").alias("departed"),
        f.count("arrival_delay").alias("arrived"),
        f.sum(f.when(f.col("arrival_delay") >= LATE_MINUTES, 1).otherwise(0)).alias("late"),
        f.sum("departure_delay").alias("departure_delay"),
        f.sum("arrival_delay").alias("arrival_delay"),
        f.max("arrival_delay").alias("worst"),
    )


def run(spark: SparkSession, bootstrap_servers: str, source: str, sink: str, checkpoint: Path, batch: int) -> int:
    """Work off all flights there are, in micro-batches; returns how many of them it took.

    Raises RuntimeError when the job does not come to its end within ten minutes.
    """
    statistics = delay_statistics(flights_from(spark, bootstrap_servers, source, batch))
    lines = statistics.select(
        f.concat_ws("|", "carrier", "date").alias("key"),
        f.to_json(f.struct(*statistics.columns), {"ignoreNullFields": "false"}).alias("value"),
    )
    query = (
        lines.writeStream.format("kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(600):
        query.stop()
        raise RuntimeError("the streaming job did not end within ten minutes")
    return sum(1 for progress in query.recentProgress if progress["numInputRows"])
