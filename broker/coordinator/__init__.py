"""The group coordinator: a pure machine (group, offsets, records) and its asyncio shell (service)."""
