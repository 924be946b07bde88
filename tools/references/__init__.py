"""The pages of docs/ that are written from the code: `make docs`.

`command_line.py` describes the commands and `configuration.py` the keys. `metrics.py` describes the metrics, from an
example of each: a new metric needs one there, as a field of `EXAMPLE`. `authorization.py` describes what each API asks
the authorizer, from the headers of the handlers.
"""
