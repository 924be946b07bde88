"""`barnabas check`: verify a log directory offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from barnabas.broker.cli.output import AsJson, ClientError, complain, counted, print_json, say

if TYPE_CHECKING:
    from barnabas.storage.os_files import OsFiles


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A log directory, or that of one partition.")],
    deep: Annotated[bool, typer.Option("--deep", help="Open every record of every batch, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the files of a log directory: segments, indexes, checkpoints. Reads only; the broker should be stopped.

    The status is 1 if data is damaged.

    [bold]Examples[/bold]

      barnabas check ~/.local/share/barnabas/1
      barnabas check /var/lib/kafka/data --deep --json
    """
    from barnabas.storage.check.directory import check_directory, is_log_directory
    from barnabas.storage.check.report import Level
    from barnabas.storage.checkpoints import LOCK_FILE
    from barnabas.storage.os_files import ReadOnlyFiles, holder_text, lock_holder

    files = ReadOnlyFiles()
    try:
        if not is_log_directory(files, str(directory)):
            raise ClientError(
                f"{directory} is no log directory: it has no meta.properties and no partitions"
                f"{_below(files, directory)}"
            )
        whole = directory.resolve()
        for place in (whole, whole.parent):  # of a broker, or of one partition
            if (pid := lock_holder(str(place / LOCK_FILE))) is not None:
                complain(f"{holder_text(pid)} uses {place}: files that it writes during the check may look damaged")
        report = check_directory(files, directory, deep=deep)
    except OSError as error:
        raise ClientError(f"cannot check {directory}: {error.strerror}") from error
    if as_json:
        print_json(report.as_dict())
    else:
        for finding in report.findings:
            say(str(finding))
        say(
            f"{counted(report.partitions, 'partition')}, {counted(report.segments, 'segment')}, "
            f"{report.batches} {'batch' if report.batches == 1 else 'batches'}, "
            f"{counted(report.records, 'record')}, {counted(report.bytes_checked, 'byte')}: "
            f"{counted(report.count(Level.ERROR), 'error')}, {counted(report.count(Level.WARNING), 'warning')}"
        )
    raise typer.Exit(report.exit_code)


def _below(files: OsFiles, directory: Path) -> str:
    """The log directories below it, such as those of `serve --brokers N`, as a hint to check them one by one."""
    from barnabas.storage.checkpoints import META_PROPERTIES_FILE

    folders = (directory / entry.name for entry in files.list(str(directory)) if entry.is_directory)
    found = sorted(str(folder) for folder in folders if (folder / META_PROPERTIES_FILE).is_file())
    return f". Check {', '.join(found)}" if found else ""
