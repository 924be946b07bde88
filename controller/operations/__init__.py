"""What the controller can be asked to do: checks, plans and decisions, pure."""
