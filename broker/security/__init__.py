"""Who somebody is, and what clients may do."""
