"""Groups and their offsets, kept in `__consumer_offsets`.

- `service.py` is what handlers ask; `shard.py` is one partition in memory.
- `events.py`: what is asked, and the replies; `changes.py`: what a decision alters; `records.py`: the durable ones in
  the log.
- `offsets.py`: committed offsets, the same for all kinds of groups; `memory.py`: estimates of memory.
- `kinds.py`: the seam for kinds of groups, of which `classic/` is the only one so far.
- `views.py`: what administrators see; `settings.py`: keys and limits.

A new event has a line in `_DECIDERS` of its kind, or in `DECIDERS` of offsets. A new change has a branch in `apply`; a
durable one is also in `RECORDS` of the shard and in `Record`, is coded in `records.py`, and has its message named in
`tools/wiregen/selection.py`. A record of another kind of group needs its case in `encode_record` and `decode_record`,
and its kind where the shard applies a record of an unknown group.
"""
