"""Sockets: connections, incoming and outgoing bytes, and their limits."""
