"""Hides the real uvloop on a process's path, to test platforms without uvloop."""

raise ImportError("this process has no uvloop")
