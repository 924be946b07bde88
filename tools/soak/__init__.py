"""Load with failures against a running broker, a history of the responses to clients, and a checker of that history."""
