"""`barnabas check`: verify a log directory offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from barnabas.broker.cli.output import AsJson, ClientError, print_json, say


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A log directory, or that of one partition.")],
    deep: Annotated[bool, typer.Option("--deep", help="Open every record of every batch, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the files of a log directory: segments, indexes, checkpoints. Reads only; the broker should be stopped.

    Ends with status 1 if data is damaged.

    [bold]Examples[/bold]

      barnabas check ~/.local/share/barnabas/1
      barnabas check /var/lib/kafka/data --deep --json
    """
    from barnabas.storage.check.directory import check_directory
    from barnabas.storage.check.report import Level
    from barnabas.storage.os_files import OsFiles

    try:
        report = check_directory(OsFiles(), directory, deep=deep)
    except OSError as error:
        raise ClientError(f"cannot check {directory}: {error.strerror}") from error
    if as_json:
        print_json(report.as_dict())
    else:
        for finding in report.findings:
            say(str(finding))
        say(
            f"{report.partitions} partitions, {report.segments} segments, {report.batches} batches, "
            f"{report.records} records, {report.bytes_checked} bytes: "
            f"{report.count(Level.ERROR)} errors, {report.count(Level.WARNING)} warnings"
        )
    raise typer.Exit(report.exit_code)
