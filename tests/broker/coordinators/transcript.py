"""Transcripts of what a coordinator's machine does: scenarios/*.txt.

Each file opens with why it exists. Then come steps: a command, a line `----`, and what the machine does. A command is
a verb, plain words and `name=value` words. After a deliberate change of behaviour `REWRITE_SCENARIOS=1 pytest ...`
writes what the machine does now: read the diff.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

Options = dict[str, str]


class Transcript:
    """Does a scenario's steps. Subclasses have a method `do_VERB(plain words, options)` for each verb, which returns
    the lines that the step writes.
    """

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def check(self, path: Path) -> None:
        """Do all steps of a file; what the machine does is what the file says."""
        text = path.read_text()
        written = []
        has_begun = False
        for block in re.split(r"\n{2,}", text.strip()):
            if "\n----" not in block:
                assert not has_begun, f"{path.name}: prose after the first step"
                written.append(block)
                continue
            has_begun = True
            command = block.partition("\n----")[0]
            written.append("\n".join([command, "----", *self._step(command)]))
        actual = "\n\n".join(written) + "\n"
        if os.environ.get("REWRITE_SCENARIOS"):
            path.write_text(actual)
        assert actual == text

    def _step(self, command: str) -> list[str]:
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        options = {name: self.value(value) for name, value in options.items()}
        plain = [word for word in words if "=" not in word]
        lines: list[str] = getattr(self, f"do_{verb.replace('-', '_')}")(plain, options)
        return lines

    def value(self, word: str) -> str:
        """The value that a word stands for."""
        return word

    def do_settings(self, _: list[str], options: Options) -> list[str]:
        settings = {name: int(value) for name, value in options.items()}
        self.machine.settings = replace(self.machine.settings, **settings)
        return []


def scenarios(test_file: str) -> list[Path]:
    """The scenarios beside a test's file."""
    found = sorted((Path(test_file).parent / "scenarios").glob("*.txt"))
    assert found, f"no scenarios beside {test_file}"
    return found
