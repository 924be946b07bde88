"""The HTTP port: health checks, metrics, and any other row of its table of routes.

- `server.py` listens, and serves a table of routes; `routes.py` declares what a route is.
- `connections.py` limits number, time and memory; `framing.py` finds the end of a request, `chunks.py` of a chunk.
- `pages.py` has the routes of today: /healthz, /readyz and /metrics.
- `oauth.py` has the routes of `serve --secure`: an issuer of tokens for development.
- `joining.py`: have all replicas been in sync since the start?
- `figures.py` reads the broker's figures; `metrics_page.py` renders them.

A new metric is a plain number that the part counts where it happens, a field in the figures, a family in the page, and
an example in `tools/references/metrics.py`, from which `make docs` writes docs/metrics.md. In a coordinator the service
or the runtime counts, as `broker/coordinators/memory_budget.py` does: machines are pure, and shards come and go.
Requests are counted in `broker/observability/`.
"""
