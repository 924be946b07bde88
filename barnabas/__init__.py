"""Barnabas: a Kafka-wire-compatible message broker in Python.

Five packages (`wire`, `storage`, `controller`, `broker`, `spark_examples`) lie at the top of the source tree. This
folder has relative symbolic links to them, so that their generic names never land in a user's site-packages. Archives
that cannot hold symbolic links (zip files) turn them into small text files; the check below says so, instead of a
puzzling ImportError later.

`__main__.py` is the command `barnabas`, and `testing/` has brokers for tests. The packages share the other files:

- `clock.py`: the clocks, and the bounds for all durations of requests and settings; `timers.py`: the port by which
  waits follow the broker's clock; `backoff.py`: the delays between attempts.
- `threads.py`: threads for blocking jobs, also when no further thread can start; `turns.py`: long work on the event
  loop in pieces; `set_aside.py`: upkeep that goes on when one log, group or topic raises.
- `network.py`: the network that a broker is handed; `inflight_budget.py`: the bound on bytes of unfinished requests.

A resource that a broker takes from outside of itself (clock, files, network, threads, randomness) is a field in
`broker/environment.py`, and a row of `SEAMS` in `tests/test_seams.py`.
"""

import os.path

__version__ = "0.1.0"

if os.path.isfile(os.path.join(os.path.dirname(__file__), "wire")):
    raise ImportError(
        "this copy of Barnabas was unpacked without its symbolic links (barnabas/wire is a file): "
        "install it from a wheel, an sdist or a git clone, not from a zip archive"
    )
