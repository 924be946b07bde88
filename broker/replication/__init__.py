"""The partitions that this broker hosts: appends, fetches, replication, high watermarks."""
