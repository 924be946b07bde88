"""Load with failures against a running broker, a history of what clients were told, and a checker of that history."""
