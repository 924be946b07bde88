"""The faults of a simulated cluster."""
