"""The profiles of Hypothesis, for all tests: its option for a profile needs them wherever pytest begins.

Other work on the machine is no fault of what is tried: there is no deadline. The same code has the same examples each
time, but in `make test-full`, which chooses `at-random` and tells the seed.
"""

from hypothesis import settings

settings.register_profile("at-random", deadline=None)
settings.register_profile("ours", deadline=None, derandomize=True)
settings.load_profile("ours")
