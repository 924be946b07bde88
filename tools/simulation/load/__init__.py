"""The clients of a simulated cluster, which record the responses that they receive."""
