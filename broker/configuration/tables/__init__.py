"""The configuration keys themselves, as plain rows."""
