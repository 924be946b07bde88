"""Data pipelines beside a message queue, in PySpark on Spark's own Kafka source and sink: see docs/spark.md."""
