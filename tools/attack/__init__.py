"""Hostile peers for the abuse tests (`tests/abuse/`).

`hostile.py` has raw connections and measurements of the attacked broker, `requests.py` a valid request for every served
API, with the topics and groups of `stage.py`, and `extremes.py` sets each of their numbers to the limits of its type.

A new API needs its request in `REQUESTS`. The figures of an attack are in docs/internals/attacks.md, and the limit that
it tries is in docs/limits.md and the pages below it.
"""
