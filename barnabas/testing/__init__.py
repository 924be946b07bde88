"""Barnabas inside a Python process, for tests."""
