"""What a test in any language asks of brokers: faults, recordings, resets, the clock, as HTTP and JSON. Only
`barnabas serve --control` imports it."""
