"""Control of brokers by tests in any language: faults, recordings, resets, the clock, as HTTP and JSON. Only `barnabas
serve --control` imports it.

`verbs.py` is the table by which requests are routed and OpenAPI is made; `actions.py` is what each verb does,
`fields.py` what it takes, `answers.py` what it returns. `rules.py` has faults in the form of kcl fake, `kcl.py` what
else is in that form. `served.py` has the brokers, `server.py` HTTP, `command.py` the process.
"""
