"""The generator of `wire/messages/` and `wire/api_table.py`: `python -m tools.wiregen`.

`__main__.py` is the command. `selection.py` names the messages, each with its jar; `jars.py` has the jars, pinned.
`definitions.py` parses Kafka's definitions, and `render.py` writes a module of each. A new message is a name in `APIS`
or `DATA` of the selection.
"""
