"""Loading existing logs, after a clean shutdown and after a crash."""
