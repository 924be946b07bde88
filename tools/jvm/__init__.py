"""Java for tests and demonstrations: its compiler (`compiler.py`), the launcher of tests in Java (`junit.py`), Hadoop's
file system for Spark (`local_files.py`), and Kafka's tools one after another in one process (`shared.py`).
"""
