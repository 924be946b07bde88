"""The `barnabas` command: a file for each noun (`topics`, `groups` and so on), which `app` registers in their order
(`Commands.ORDER`). The examples in a command's help are run by a test.

They share `command` (help), `completion`, `output`, `values` (what options mean), `records` (lines that `produce` and
`consume` take and print) and `interrupts` (Ctrl-C and SIGTERM), and talk to brokers by our own client
(`broker/client/`). `serve` starts `one_broker`, which is a `process` from its start to its exit status (`ready`: the
line that says that clients may connect), or `several_brokers`, whose parent is the `supervisor` of processes.
"""
