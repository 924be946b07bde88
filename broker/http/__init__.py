"""The HTTP side: health and metrics.

A new metric is a plain number, counted by the part where it happens, a field in `figures`, and a family in
`metrics_page`. Of a coordinator the service or the runtime counts, as `memory_budget` counts refusals: machines are
pure, and shards come and go.
"""
