"""Coordinators over internal topics: groups and transactions."""
