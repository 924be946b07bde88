"""Broken bytes for every reader of foreign bytes: `make fuzz`.

`__main__.py` is the command. `targets.py` has the readers (a `target.py` each), with those of logins and tokens in
`login_targets.py`, and those of certificates and ACLs in `security_targets.py`. `session.py` runs one of them and keeps
what it finds, with inputs from `engines.py`: own mutations (`mutation.py`), or libFuzzer.

A new reader of bytes from peers or disks is a row of `TARGETS`; `tests/fuzz/` replays each finding.
"""
