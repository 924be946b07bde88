"""The partitions that this broker hosts: appends, fetches, what is committed."""
