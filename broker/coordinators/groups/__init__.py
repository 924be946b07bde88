"""Groups and their offsets, kept in `__consumer_offsets`.

`service` is what handlers ask; a `shard` is one partition in memory. It has `offsets`, which are the same for all
groups, and groups of any kind (`kinds`); classic groups (`classic/`) are the only kind so far. `changes` are what a
decision alters, `records` their form in the log (a new type of record needs its message in
`tools/wiregen/selection.py`), `events` what is asked, and the replies; `views` are for administrators.
"""
