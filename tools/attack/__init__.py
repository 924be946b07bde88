"""Hostile peers for the abuse tests.

`hostile.py` has raw connections and measurements of the attacked broker, `request_stage.py` a valid request for every
served API, and `extremes.py` sets each of their numbers to the limits of its type.
"""
