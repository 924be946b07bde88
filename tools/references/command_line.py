"""Writes docs/command-line.md from the commands themselves: `python -m tools.references.command_line`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from barnabas.broker.cli.app import app
from barnabas.broker.cli.command import UNSEEN
from barnabas.broker.cli.connection_options import PANEL
from tools.markdown import wrapped

TARGET = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"

INTRODUCTION = """# The command line

`barnabas serve` runs a broker; the other commands work with any Kafka-compatible one. All of them take the same options
for the same things:

- `--bootstrap-server` (`-b`) is the address of the cluster; without it, that of the variable
  `BARNABAS_BOOTSTRAP_SERVER`, else `127.0.0.1:9092`.
- `--command-config` is a file of properties as Kafka's clients and librdkafka have them (`security.protocol`,
  `sasl.jaas.config`, `ssl.truststore.location`, `sasl.username`, `ssl.ca.location`, ...), also in the variable
  `BARNABAS_COMMAND_CONFIG`; its `bootstrap.servers` count where no others are given. Options count before it.
- `--user` logs in over TLS, by SCRAM, else PLAIN; the password is asked for, unless `BARNABAS_PASSWORD` or
  `--password`, which other users of the machine can see, has it. `--ca` is the file of CA certificates (PEM) to trust,
  without it those of the system are; `--certificate` and `--key` are the client's own.
- `--json` prints JSON for programs instead of tables and sentences. Errors go to standard error either way.
- TIME is a date and time (`2026-01-31T12:00`, local unless it has a zone), a number of ms since 1970, or a time ago:
  `-90s`, `-15m`, `-1h`, `-7d`, `-2w`.
- OFFSET is a number, `-N` for N before the end, `earliest` or `latest`.
- `TOPIC[:P,P...]` is a topic, or some of its partitions: `flights:0,3`.

The exit status is 0 after success, 1 after a failure, 2 after wrong usage, 130 after Ctrl-C and 143 after SIGTERM.
Standard error names each failure, but for a closed output. (In the first hundredths of a second, while Python itself
starts, Ctrl-C shows Python's own traceback.) Names of groups of commands may be in the singular: `barnabas topic list`.

`barnabas --install-completion` makes bash, zsh and fish propose commands, choices, keys and their values, and the
topics, partitions, groups and ids that the broker knows; `barnabas --show-completion` prints the script instead.

Records are lines: `consume` prints values, or what `--format` says, and `produce` takes a value per line. With `--json`
a line is a record with key, value, headers, timestamp and partition; bytes that are not UTF-8 are
`{"base64": "..."}`. This copies a topic, nulls and bytes included, to one with as many partitions:

```sh
barnabas topics create B --partitions 6
barnabas consume A -o earliest -e --json | barnabas produce B --json
```

*This page is written by `make docs`; `barnabas COMMAND --help` says the same.*
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Each command and its words on the command line, in the order of the help."""
    yield from _below("barnabas", typer.main.get_command(app))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _below(f"{path} {name}", command.get_command(None, name))


def examples(command: Any) -> list[str]:
    """The example lines of its help."""
    _, _, text = (command.help or "").partition("[bold]Example")
    return [line.strip() for line in text.splitlines()[1:] if line.strip() not in ("", UNSEEN)]


def reference() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(f"\n{_section(path, command)}" for path, command in commands())


def _section(path: str, command: Any) -> str:
    description = (command.help or "").partition("[bold]Example")[0].strip()
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not _is_of_connection(each)]
    usage = " ".join([path, "[OPTIONS]", *(each.metavar or each.name.upper() for each in arguments)])
    paragraphs = "\n\n".join(map(wrapped, description.split("\n\n")))
    lines = [f"## {path.removeprefix('barnabas ')}", "", f"`{usage}`", "", paragraphs, ""]
    lines += [wrapped(f"- {_names(each)}: {_meaning(each)}") for each in (*arguments, *options)]
    return "\n".join([*lines, "", "```console", *examples(command), "```", ""])


def _is_of_connection(option: Any) -> bool:
    """Whether the option is one of those that the introduction has for all commands."""
    return getattr(option, "rich_help_panel", None) == PANEL and option.opts not in (["--as"], ["--private-key"])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    return f"{names} `{parameter.metavar}`" if parameter.metavar else names


def _meaning(parameter: Any) -> str:
    values = () if parameter.metavar else getattr(parameter.type, "choices", ())
    choices = [f"`{value}`" for value in values]
    text = parameter.help or ""
    default = parameter.default
    if parameter.param_type_name == "option" and default not in (None, False, [], ()):
        text += f" Default: `{getattr(default, 'value', default)}`."
    return " ".join(filter(None, (text, f"One of {', '.join(choices)}." if choices else "")))


def main() -> int:
    """Write the page."""
    TARGET.write_text(reference())
    return 0


if __name__ == "__main__":
    sys.exit(main())
