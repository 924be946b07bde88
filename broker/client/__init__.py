"""A small Kafka client for the command line: `errors` are those that end a command, `patience` what is tried again, and
for how long.
"""
