"""Recordings of what clients ask brokers and what they receive, and charts of them."""
