"""Stands before the real one on the path of a process that shall find no uvloop, as on platforms that have none."""

raise ImportError("this process has no uvloop")
