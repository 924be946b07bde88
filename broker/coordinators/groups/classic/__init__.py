"""The membership machine of classic consumer groups."""
