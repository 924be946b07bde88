"""The checks of a simulated cluster."""
