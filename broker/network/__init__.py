"""Sockets: who connects, what arrives and leaves, how much of it may be under way."""
