"""Hostile peers for the abuse tests.

`hostile.py` has raw connections and measurements of the attacked broker, `requests.py` a valid request for every served
API, with the topics and groups of `stage.py`, and `extremes.py` sets each of their numbers to the limits of its type.
"""
