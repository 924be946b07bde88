"""A log directory verified offline."""
