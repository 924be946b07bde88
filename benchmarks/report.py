"""The table of measurements: `python -m benchmarks.report FILE` prints it in Markdown. Pure but for `main`."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.model import Figure, Goal, Measurement
from benchmarks.spread import Spread
from benchmarks.system import BARNABAS, FLOOR, KAFKA, PEERS
from tools.markdown import wrapped

RESULTS_START, RESULTS_END = "<!-- results -->", "<!-- end of results -->"
GOALS_MET = "The goals that are met, by the median of the pairs:"
_RESULTS_OF = re.compile(r"<!-- results of (W[W\d, ]*) -->")
"""The start of what is written on a page that has the tables of some workloads."""


@dataclass(frozen=True, slots=True)
class Run:
    """All measurements of one call of the harness, or of several; `environment` says what they were made on and with,
    `made` the same of single rows where that differs."""

    environment: dict[str, str]
    systems: dict[str, str]
    is_quick: bool
    measurements: list[Measurement]
    made: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """Raises KeyError, TypeError, ValueError for anything that `to_json` did not write."""
        content: dict[str, Any] = json.loads(text)
        measurements = []
        for each in content.pop("measurements"):
            figures = [
                Figure(**{**figure, "goals": tuple(Goal(**goal) for goal in figure["goals"])})
                for figure in each.pop("figures")
            ]
            measurements.append(Measurement(**each, figures=tuple(figures)))
        return cls(**content, measurements=measurements)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one workload: of each system, and Barnabas' in relation to Kafka's; for each goal the values of the
    pairs that it is about, and the verdict, None where there is nothing to compare with."""

    row: str
    title: str
    name: str
    unit: str
    values: dict[str, Spread]
    ratio: Spread | None
    goals: tuple[Goal, ...]
    compared: tuple[list[float], ...]
    verdicts: tuple[bool | None, ...]


def ratios(measurements: Iterable[Measurement], row: str, name: str, of: str) -> list[float]:
    """Barnabas' figure in relation to another system's, for each pair of neighbouring runs."""
    ours: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for measurement in measurements:
        side = {BARNABAS: ours, of: theirs}.get(measurement.system)
        if side is not None and measurement.row == row:
            side.update((measurement.pair, figure.value) for figure in measurement.figures if figure.name == name)
    # A growth of memory may be less than nothing: then there is nothing to compare.
    return [ours[pair] / theirs[pair] for pair in sorted(ours) if theirs.get(pair, 0) > 0 and ours[pair] >= 0]


def lines(measurements: Sequence[Measurement]) -> list[Line]:
    """The table's lines, workloads and figures in the order in which they were first measured; a workload that failed
    before its first figure has none."""
    kinds = {
        (measurement.row, measurement.title, figure.name, figure.unit, figure.goals): None
        for measurement in measurements
        for figure in measurement.figures
    }
    found: dict[str, list[Line]] = {}
    for row, title, name, unit, goals in kinds:
        if not goals and any(key[0] == row and key[2] == name and key[4] for key in kinds):
            continue  # the floor's figures have no goals of their own
        values: dict[str, list[float]] = {}
        for measurement in measurements:
            if measurement.row == row:
                values.setdefault(measurement.system, []).extend(
                    figure.value for figure in measurement.figures if figure.name == name
                )
        to_kafka = ratios(measurements, row, name, KAFKA)
        has_failed = any(each.error for each in measurements if each.row == row and each.system == BARNABAS)
        compared = [values.get(BARNABAS, []) if goal.of is None else ratios(measurements, row, name, goal.of)
                    for goal in goals]  # fmt: skip
        line = Line(
            row, title, name, unit,
            {system: Spread.of(each) for system, each in values.items() if each},
            Spread.of(to_kafka) if to_kafka else None,
            goals, tuple(compared),
            tuple(_verdict(goal, each, has_failed=has_failed) for goal, each in zip(goals, compared, strict=True)),
        )  # fmt: skip
        found.setdefault(row, []).append(line)
    return [line for of_row in found.values() for line in of_row]


def _verdict(goal: Goal, compared: Sequence[float], *, has_failed: bool) -> bool | None:
    """Judged by the median; a system that failed once has not met it."""
    if has_failed:
        return False
    return goal.is_met_by(Spread.of(compared).median) if compared else None


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _met(goal: Goal, compared: Sequence[float], verdict: bool | None) -> str:
    """The verdict, in how many of the pairs the goal is met where they disagree, and a ratio that has no column."""
    told = {True: "yes", False: "no", None: "?"}[verdict]
    met = sum(map(goal.is_met_by, compared))
    if 0 < met < len(compared):
        told += f" ({met} of {len(compared)})"
    return f"{told}: {number(Spread.of(compared).median)} x" if goal.of == FLOOR and compared else told


def cells(line: Line, systems: Iterable[str]) -> list[str]:
    """A line's texts: figure, each system's median, ratio, goals, verdicts."""
    values = [number(line.values[system].median) if system in line.values else "" for system in systems]
    ratio = line.ratio
    told = f"{number(ratio.median)} ({number(ratio.low)} - {number(ratio.high)})" if ratio else ""
    met = map(_met, line.goals, line.compared, line.verdicts)
    return [f"{line.name}, {line.unit}", *values, told, "; ".join(map(str, line.goals)), "; ".join(met)]


def _present(run: Run) -> dict[str, str]:
    """The systems that were measured: name and title."""
    measured = {measurement.system for measurement in run.measurements}
    return {name: title for name, title in run.systems.items() if name in measured}


def _headings(systems: Iterable[str]) -> list[str]:
    return ["figure", *systems, "Barnabas / Kafka", "goal", "met"]


def _blocks(measurements: Sequence[Measurement]) -> Iterator[tuple[str, str, list[Line]]]:
    """Row, title and lines of each workload; one that nobody could run has no lines."""
    of_row: dict[str, list[Line]] = {}
    for line in lines(measurements):
        of_row.setdefault(line.row, []).append(line)
    for row, title in dict.fromkeys((each.row, each.title) for each in measurements):
        yield row, title, of_row.get(row, [])


def rich_table(run: Run) -> Table:
    """The table for a terminal: a block of lines for each workload."""
    systems = _present(run)
    table = Table(title="quick sizes: a check, not a measurement" if run.is_quick else None, show_lines=False)
    table.add_column("")
    for number_of_column, heading in enumerate(_headings(systems.values())):
        table.add_column(heading, justify="left" if number_of_column == 0 else "right")
    for row, title, of_row in _blocks(run.measurements):
        table.add_section()
        table.add_row(row, f"[bold]{title}", *([] if of_row else ["[red]failed"]))
        for line in of_row:
            figure, *values, goal, met = cells(line, systems)
            colour = "red" if False in line.verdicts else "green" if True in line.verdicts else ""
            table.add_row("", figure, *values, goal, f"[{colour}]{met}" if colour else met)
    return table


def markdown(run: Run) -> str:
    """The tables of docs/benchmarks/results/: the machine, then a heading and a table for each workload."""
    systems = _present(run)
    told = {**run.environment, "columns": ", ".join(systems.values())}
    text = [f"- {name}: {value}" for name, value in told.items()]
    if run.is_quick:
        text.append("- sizes: those of --quick, a check of the harness rather than a measurement")
    for row, title, of_row in _blocks(run.measurements):
        text += ["", f"## {row}: {title if of_row else f'{title}: failed'}", ""]
        if row in run.made:
            text += [wrapped(run.made[row] + "."), ""]
        if of_row:
            shown = [name for name in systems if any(name in line.values for line in of_row)]
            headings = _headings(re.split(r" [\d(]", systems[name])[0] for name in shown)
            text += [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
            text += [f"| {' | '.join(cells(line, shown))} |" for line in of_row]
    failed = [each for each in run.measurements if each.error]
    text += ["", *(f"- {each.row} failed on {each.system}: {each.error.splitlines()[0]}" for each in failed)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).rstrip()


class _Parts(NamedTuple):
    """The parts of a text from `markdown`: up to the first workload, the text of each, and the lines about failures."""

    told: str
    of_row: dict[str, str]
    failures: list[str]

    @classmethod
    def of(cls, results: str) -> "_Parts":
        told, *blocks = re.split(r"(?:^|\n\n)(?=## W\d)", results.strip())
        text, *failures = re.split(r"\n\n(?=- W\d+ failed)", blocks[-1]) if blocks else [""]
        of_row = {block.removeprefix("## ").partition(":")[0]: block for block in [*blocks[:-1], text] if block}
        return cls(told, of_row, failures[0].splitlines() if failures else [])

    def updated(self, new: "_Parts") -> "_Parts":
        """The new parts, with the workloads that they have not, and what is told about their failures. Raises
        ValueError where such workloads were measured on another machine, with other versions or with other columns."""
        if not self.of_row.keys() <= new.of_row.keys() and self.told != new.told:
            raise ValueError(
                "the table there has other columns, versions or another machine: give files of all its rows"
            )
        blocks = {**self.of_row, **new.of_row}
        stay = [line for line in self.failures if _row_of(line) not in new.of_row]
        in_order = {row: blocks[row] for row in sorted(blocks, key=_place)}
        return _Parts(new.told, in_order, [*stay, *new.failures])

    def tables(self, rows: Iterable[str]) -> str:
        """Those of some workloads, with what is told about their failures."""
        failed = [line for line in self.failures if _row_of(line) in rows]
        return "\n\n".join([*(text for row, text in self.of_row.items() if row in rows), "\n".join(failed)]).strip()


def with_results(document: str, results: str) -> str:
    """A document with its part between the marks replaced; workloads that the new part has not stay, with what is told
    about their failures.

    Raises ValueError when it has no marks, or workloads would stay that were measured on another machine, with other
    versions or with other columns.
    """
    before, there, after = _marked(document, RESULTS_START)
    parts = _Parts.of(there).updated(_Parts.of(results))
    return before + "\n\n".join([parts.told, parts.tables(parts.of_row)]).strip() + after


def pages_with_results(pages: Mapping[str, str], results: str) -> dict[str, str]:
    """The same for a page and those below it, by their paths as the first one links to them. The first page has the
    machine, and how many of its goals each workload meets; each other page has the tables of the workloads that its
    mark names.

    Raises ValueError also when no page is for a workload.
    """
    (head, first), *others = pages.items()
    before, there, after = _marked(first, RESULTS_START)
    told, _, _ = there.strip().partition("\n\n")
    rows = {path: _rows(path, text) for path, text in others}
    old = _Parts(told, {}, [])
    for path, text in others:
        _, of_rows, _ = _marked(text, _mark(rows[path]))
        old = old.updated(_Parts.of(of_rows)._replace(told=told))
    parts = old.updated(_Parts.of(results))
    page_of = {row: path for path, of_page in rows.items() for row in of_page}
    if homeless := [row for row in parts.of_row if row not in page_of]:
        raise ValueError(f"no page is for {', '.join(homeless)}: name them in the mark of one")
    goals = [_goals_met(row, text, page_of[row]) for row, text in parts.of_row.items()]
    written = {head: before + "\n\n".join([parts.told, GOALS_MET, "\n".join(goals)]) + after}
    for path, text in others:
        before, _, after = _marked(text, _mark(rows[path]))
        written[path] = before + (parts.tables(rows[path]) or "Not measured yet.") + after
    return written


def _marked(document: str, mark: str) -> tuple[str, str, str]:
    """The text up to the mark, from there to the mark of the end, and the rest."""
    head, start, rest = document.partition(mark)
    there, end, tail = rest.partition(RESULTS_END)
    if not start or not end:
        raise ValueError(f"the document has no {mark} ... {RESULTS_END}")
    return f"{head}{start}\n", there, f"\n{end}{tail}"


def _rows(path: str, page: str) -> list[str]:
    """The workloads that the mark of a page names."""
    found = _RESULTS_OF.search(page)
    if found is None:
        raise ValueError(f"{path} has no <!-- results of ... --> ... {RESULTS_END}")
    return found[1].split(", ")


def _mark(rows: Iterable[str]) -> str:
    return f"<!-- results of {', '.join(rows)} -->"


def _goals_met(row: str, block: str, path: str) -> str:
    """A line of the first page: a workload's title, with a link to its table, and how many of its goals are met."""
    title = block.partition("\n")[0].partition(": ")[2]
    last_cells = [line.rsplit("|", 2)[1] for line in block.splitlines() if line.startswith("| ")]
    verdicts = [each.strip() for cell in last_cells[1:] for each in cell.split(";") if each.strip()]
    met = sum(verdict.startswith("yes") for verdict in verdicts)
    return wrapped(f"- {row}, [{title}]({path}): {met} of {len(verdicts)}")


def _row_of(failure: str) -> str:
    return failure.removeprefix("- ").partition(" ")[0]


def _place(row: str) -> int:
    return int(row.removeprefix("W"))


def together(runs: Sequence[Run]) -> Run:
    """Runs of different workloads as one; of the same workload, the last one counts, but peers that were measured
    alone, which nothing is compared with, join the others. Dates, commands and versions of what was measured are told
    by each row.

    Raises ValueError when they were made on several machines, or with several versions of what is not Barnabas.
    """
    environments = [{name: value for name, value in run.environment.items() if name not in _OF_ROWS} for run in runs]
    if any(each != environments[0] for each in environments):
        raise ValueError(f"these runs were made on different machines, or with different versions: {environments}")
    parts = [
        (run, row, [each for each in run.measurements if each.row == row])
        for run in runs
        for row in dict.fromkeys(each.row for each in run.measurements)
    ]
    measurements: dict[str, list[Measurement]] = {}
    made: dict[str, str] = {}
    alone: dict[tuple[str, str], str] = {}
    for run, row, of_row in sorted(parts, key=lambda part: _are_peers(part[2])):
        if _are_peers(of_row) and row in measurements:
            names = {each.system for each in of_row}
            measurements[row] = [each for each in measurements[row] if each.system not in names] + of_row
            alone.update({(row, name): _made(run, of_row) for name in names})
        else:
            measurements[row], made[row] = of_row, _made(run, of_row)
    for (row, name), told in sorted(alone.items()):
        made[row] += f"; {name} alone: {told}"
    systems = {name: title for run in runs for name, title in run.systems.items()}
    found = [each for row in sorted(measurements, key=_place) for each in measurements[row]]
    return Run(environments[0], systems, any(run.is_quick for run in runs), found, made)


def _are_peers(measurements: Iterable[Measurement]) -> bool:
    return all(each.system in PEERS for each in measurements)


_OF_ROWS = ("command", "date", "Barnabas", "Python")


def _made(run: Run, of_row: Sequence[Measurement]) -> str:
    """A line with the date, command, versions and number of pairs of a row."""
    pairs = 1 + max(each.pair for each in of_row)
    told = [run.environment.get(name, "?") for name in ("date", "command", "Barnabas")]
    told += [f"Python {run.environment.get('Python', '?')}", f"{pairs} {'pair' if pairs == 1 else 'pairs'}"]
    return ", ".join(told)


def write(into: Path, results: str) -> None:
    """Put tables into a document; where a folder of its name has pages, into these."""
    below = sorted(into.with_suffix("").glob("*.md"))
    texts = {page.relative_to(into.parent).as_posix(): page.read_text() for page in [into, *below]}
    written = pages_with_results(texts, results) if below else {into.name: with_results(texts[into.name], results)}
    for path, text in written.items():
        (into.parent / path).write_text(text)


def main() -> int:
    """Print the table of files that `make bench ARGS='--json FILE'` wrote, or put it into a document and the pages in
    the folder of its name; rows that no file has stay there as they are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=main.__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--into", type=Path, metavar="DOCUMENT", help="replace these rows there")
    options = parser.parse_args()
    try:
        results = markdown(together([Run.from_json(file.read_text()) for file in options.files]))
        if options.into is None:
            print(results)
        else:
            write(options.into, results)
    except ValueError as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
