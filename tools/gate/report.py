"""The table at the end of a run: passed, failed and repeated tests, with seeds and the output of both attempts."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.gate.outcomes import PASSED, SKIPPED
from tools.gate.run import FLAKY_MAX, PartRun, Run

TEXT_LINES_MAX: Final = 150
"""The lines shown again for a failure; the record contains all of them."""
SLOW_FILES: Final = 15


def report(run: Run, folder: Path) -> Iterator[str]:
    """The lines of the table."""
    for each in run.parts:
        yield from _flaky_outputs(each)
    yield from _slow_files(run)
    yield ""
    yield f"{'part':<16}{'passed':>8}{'failed':>8}{'FLAKY':>7}{'skipped':>9}{'time':>14}{'processors':>14}"
    for each in run.parts:
        yield (
            f"{each.part.name:<16}{each.count(PASSED):>8}{len(each.failed):>8}{len(each.flaky):>7}"
            f"{each.count(SKIPPED):>9}{_minutes(each.seconds):>14}{_minutes(each.processor_seconds):>14}"
        )
    yield (
        f"{'all':<16}{sum(each.count(PASSED) for each in run.parts):>8}"
        f"{sum(len(each.failed) for each in run.parts):>8}{len(run.flaky):>7}"
        f"{sum(each.count(SKIPPED) for each in run.parts):>9}{_minutes(sum(each.seconds for each in run.parts)):>14}"
        f"{_minutes(sum(each.processor_seconds for each in run.parts)):>14}"
    )
    for each in run.parts:
        yield from _notes(each)
    if len(run.flaky) > FLAKY_MAX:
        yield f"More than {FLAKY_MAX} tests are FLAKY: the run has failed."
    yield f"Records and JUnit XML: {folder}"


def _notes(each: PartRun) -> Iterator[str]:
    if each.resumed:
        yield f"{each.part.name}: {each.resumed} outcomes are those of a run that was interrupted"
    for name in each.failed:
        seeds = each.outcomes[name].seeds
        yield f"FAILED {name}{' (again)' if name in each.again else ''}{' seeds ' + ', '.join(seeds) if seeds else ''}"
    for name in each.flaky:
        yield f"FLAKY  {name}"
    if each.broke_off:
        yield f"BROKE OFF {each.part.name}: pytest ended with status {each.status}"
        for name in each.unfinished:
            yield f"  while it ran {name}"


def _flaky_outputs(each: PartRun) -> Iterator[str]:
    """Both outputs of a test that passed the second time, or failed twice."""
    for name, second in each.again.items():
        yield f"\n===== {name}: the first time"
        yield from each.outcomes[name].text.splitlines()[-TEXT_LINES_MAX:]
        yield f"===== {name}: the second time, {second.outcome} after {second.seconds:.1f} s"
        yield from second.text.splitlines()[-TEXT_LINES_MAX:]


def _slow_files(run: Run) -> Iterator[str]:
    seconds: defaultdict[str, float] = defaultdict(float)
    processors: defaultdict[str, float] = defaultdict(float)
    for each in run.parts:
        for outcome in each.outcomes.values():
            file = outcome.test.partition("::")[0]
            seconds[file] += outcome.seconds
            processors[file] += outcome.processor_seconds
    if not seconds:
        return
    yield "\nThe files whose tests took longest, and the processor time of those:"
    for file in sorted(seconds, key=lambda each: -seconds[each])[:SLOW_FILES]:
        yield f"{seconds[file]:8.1f} s {processors[file]:8.1f} s  {file}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"
