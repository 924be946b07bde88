"""Control of brokers by tests in any language: faults, recordings, resets, the clock, as HTTP and JSON. Only `barnabas
serve --control` imports it.
"""
