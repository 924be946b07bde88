"""The HTTP port: health checks, metrics, and whatever else is a row of its table of routes.

`server.py` listens and serves routes (`routes.py`); `connections.py` bounds what clients can hold, with `framing.py`
(where a request ends, and whether another may follow) and `chunks.py` (bodies in chunks). `pages.py` has the routes of
the pages, with `joining.py` (whether replicas have been in sync since the start), `figures.py` (the broker's figures)
and `metrics_page.py` (the page that shows them).

A new metric is a plain number, counted by the part where it happens, a field in `figures`, and a family in
`metrics_page`. Of a coordinator the service or the runtime counts, as `memory_budget` counts refusals: machines are
pure, and shards come and go.
"""
