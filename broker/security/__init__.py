"""What clients may do."""
