"""Control of brokers by tests in any language: faults, recordings, resets, the clock, as HTTP and JSON. Only `barnabas
serve --control` imports it.

- `verbs.py` is the table by which requests are routed and OpenAPI is made (`openapi.py`), with `security_verbs.py`;
  `verb.py` is an entry of it. `actions.py` is what each verb does, `fields.py` what it takes, `answers.py` what it
  returns. `wording.py` translates Python's terms in texts.
- `rules.py` has faults in the form of kcl fake, `kcl.py` the other functions of kcl fake.
- `command.py` is the process, `server.py` its HTTP, `served.py` its brokers.

A new verb is a row of `VERBS`, an action (a verb of `Faults` needs none), a line in
docs/testing-other-languages/verbs.md and a request in `tests/testing/control/test_control.py`.
"""
