import re
from pathlib import Path

import pytest

from benchmarks.model import Figure, Measurement, at_least, at_most, no_more_than
from benchmarks.report import (
    GOALS_MET,
    RESULTS_END,
    RESULTS_START,
    Run,
    cells,
    lines,
    markdown,
    number,
    pages_with_results,
    together,
    with_results,
    write,
)
from benchmarks.spread import Spread
from benchmarks.system import BARNABAS, FLOOR, KAFKA, KFAKE, MESH
from benchmarks.workloads import WORKLOADS

RATE = (at_least(1.3),)
CPU = (at_most(0.4), at_most(1.5, of=FLOOR))


def measurement(system: str, pair: int, rate: float, cpu: float, error: str = "") -> Measurement:
    goals = (RATE, CPU) if system != FLOOR else ((), ())
    figures = (Figure("rate", rate, "MiB/s", goals[0]), Figure("CPU", cpu, "s/GiB", goals[1]))
    return Measurement("W1", "produce", system, pair, 1.5, figures, error)


MEASURED = [
    measurement(BARNABAS, 0, 300, 1.0), measurement(KAFKA, 0, 200, 4.0), measurement(FLOOR, 0, 900, 0.5),
    measurement(BARNABAS, 1, 250, 1.5), measurement(KAFKA, 1, 250, 3.0), measurement(FLOOR, 1, 900, 0.6),
    measurement(BARNABAS, 2, 320, 1.1), measurement(KAFKA, 2, 200, 5.5), measurement(FLOOR, 2, 900, 0.5),
]  # fmt: skip


def test_neighbouring_runs_are_compared_and_the_median_decides():
    rate, cpu = lines(MEASURED)
    assert rate.values[BARNABAS] == Spread(300, 250, 320)
    assert rate.ratio == Spread(1.5, 1.0, 1.6)
    assert rate.verdicts == (True,)
    assert cpu.ratio == Spread(0.25, 0.2, 0.5)
    assert cpu.verdicts == (True, False)  # a quarter of Kafka's, but twice the floor's
    assert rate.values[FLOOR].median == 900


def test_without_the_other_system_there_is_no_verdict():
    rate, cpu = lines([each for each in MEASURED if each.system == BARNABAS])
    assert (rate.ratio, rate.verdicts, cpu.verdicts) == (None, (None,), (None, None))


def test_a_bound_of_the_figure_itself_needs_no_other_system():
    goals = (at_most(1.0), no_more_than(100))
    slow = Measurement("W5", "latency", BARNABAS, 0, 1, (Figure("p99.9", 101, "ms", goals),))
    [line] = lines([slow])
    assert line.verdicts == (None, False)


def test_a_run_that_failed_has_what_it_found_and_leaves_no_ratio():
    found = [measurement(BARNABAS, 0, 300, 1.0), Measurement("W1", "produce", KAFKA, 0, 2, (), "RuntimeError: no")]
    rate, _ = lines(found)
    assert (rate.values[BARNABAS].median, rate.ratio) == (300, None)


def test_a_goal_is_not_met_by_a_system_that_fails():
    [*_, last] = MEASURED
    rate, _ = lines([*MEASURED, Measurement("W1", "produce", BARNABAS, 3, 2, (), "RuntimeError: no"), last])
    assert (rate.ratio.median, rate.verdicts) == (1.5, (False,))


def test_a_ratio_however_small_has_digits_that_mean_something():
    times = [Measurement("W5", "latency", system, 0, 1, (Figure("p50", value, "ms"),))
             for system, value in ((BARNABAS, 0.41), (KAFKA, 103.0))]  # fmt: skip
    [line] = lines(times)
    assert cells(line, [BARNABAS, KAFKA])[3] == "0.004 (0.004 - 0.004)"


def test_a_negative_figure_is_not_compared():
    grown = [Measurement("W13", "idle", system, 0, 1, (Figure("memory", value, "KiB", CPU[:1]),))
             for system, value in ((BARNABAS, 8.0), (KAFKA, -1.5))]  # fmt: skip
    [line] = lines(grown)
    assert (line.ratio, line.verdicts) == (None, (None,))


def test_runs_together_have_each_workload_once_and_in_order():
    def told(day: int, commit: str) -> dict[str, str]:
        return {"command": "make bench", "date": f"2026-11-{day} 10:00 UTC", "machine": "m", "Barnabas": commit,
                "Python": "3.13.1, uvloop 1"}  # fmt: skip

    flushed = Measurement("W10", "flushed", KAFKA, 0, 1, ())
    first = Run(told(21, "a"), {BARNABAS: "Barnabas 1"}, False, [measurement(BARNABAS, 0, 1, 1), flushed])
    second = Run(told(22, "b"), {KAFKA: "Kafka 4"}, False, MEASURED)
    run = together([first, second])
    assert run.measurements == [*MEASURED, flushed]
    assert run.environment == {"machine": "m"}
    assert run.systems == {BARNABAS: "Barnabas 1", KAFKA: "Kafka 4"}
    assert run.made == {
        "W1": "2026-11-22 10:00 UTC, make bench, b, Python 3.13.1, uvloop 1, 3 pairs",
        "W10": "2026-11-21 10:00 UTC, make bench, a, Python 3.13.1, uvloop 1, 1 pair",
    }
    other = Run({**told(22, "b"), "machine": "another"}, {}, False, MEASURED)
    with pytest.raises(ValueError, match="different machines"):
        together([first, other])


@pytest.mark.parametrize("peers_come_first", [False, True])
def test_peers_measured_alone_join_the_row_of_another_run(peers_come_first):
    told = {"command": "make bench", "date": "2026-11-21 10:00 UTC", "Barnabas": "commit a", "Python": "3.13.1"}
    first = Run(told, {BARNABAS: "Barnabas 1", KAFKA: "Kafka 4"}, False, [*MEASURED, measurement(KFAKE, 0, 1, 1)])
    peer, other = measurement(KFAKE, 0, 210, 2), Measurement("W2", "defaults", MESH, 0, 1, ())
    later = {**told, "command": "make bench ARGS='--systems kfake'", "date": "2026-11-22", "Barnabas": "commit b"}
    second = Run(later, {KFAKE: "kfake"}, False, [peer, other])
    run = together([second, first] if peers_come_first else [first, second])
    assert run.measurements == [*MEASURED, peer, other]
    joined = "2026-11-22, make bench ARGS='--systems kfake', commit b, Python 3.13.1, 1 pair"
    assert run.made == {
        "W1": f"2026-11-21 10:00 UTC, make bench, commit a, Python 3.13.1, 3 pairs; kfake alone: {joined}",
        "W2": joined,
    }
    assert {*run.systems} == {BARNABAS, KAFKA, KFAKE}


def test_a_run_is_the_same_after_its_file():
    run = Run({"machine": "this one"}, {BARNABAS: "Barnabas 1", KAFKA: "Kafka 4"}, False, MEASURED)
    assert Run.from_json(run.to_json()) == run


def test_markdown():
    systems = {BARNABAS: "Barnabas 1", KAFKA: "Apache Kafka 4 (Java)", "mesh": "not measured", FLOOR: "floor"}
    failed = Measurement("W2", "defaults", KAFKA, 0, 2, (), "RuntimeError: no\nmore")
    text = markdown(Run({"machine": "this one"}, systems, True, [*MEASURED, failed], {"W1": "today, 3 pairs"}))
    assert text.splitlines() == [
        "- machine: this one",
        "- columns: Barnabas 1, Apache Kafka 4 (Java), floor",
        "- sizes: those of --quick, a check of the harness rather than a measurement",
        "",
        "## W1: produce",
        "",
        "today, 3 pairs.",
        "",
        "| figure | Barnabas | Apache Kafka | floor | Barnabas / Kafka | goal | met |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| rate, MiB/s | 300 | 200 | 900 | 1.50 (1.00 - 1.60) | ≥ 1.3 x | yes (2 of 3) |",
        "| CPU, s/GiB | 1.10 | 4.00 | 0.50 | 0.25 (0.20 - 0.50) | ≤ 0.4 x; ≤ 1.5 x floor | yes (2 of 3); no: 2.20 x |",
        "",
        "## W2: defaults: failed",
        "",
        "- W2 failed on kafka: RuntimeError: no",
    ]


def test_results_are_replaced_and_nothing_else():
    document = f"before\n{RESULTS_START}\nold\n{RESULTS_END}\nafter\n"
    assert with_results(document, "new") == f"before\n{RESULTS_START}\nnew\n{RESULTS_END}\nafter\n"
    with pytest.raises(ValueError, match="no <!-- results"):
        with_results("no marks", "new")


def test_workloads_that_were_not_measured_again_stay():
    head = "- machine: a\n- columns: Kafka"

    def block(row: str, value: int) -> str:
        return f"\n\n## {row}: title\n\n| figure | Kafka |\n|---|---:|\n| rate | {value} |"

    failures = "\n\n- W2 failed on kafka: y\n- W3 failed on kafka: x"
    old = head + block("W2", 1) + block("W3", 1) + block("W10", 1) + failures
    new = head + block("W1", 2) + block("W3", 2)
    document = with_results(f"before\n{RESULTS_START}\n{old}\n{RESULTS_END}\nafter\n", new)
    blocks = block("W1", 2) + block("W2", 1) + block("W3", 2) + block("W10", 1) + "\n\n- W2 failed on kafka: y\n"
    assert document == f"before\n{RESULTS_START}\n{head}{blocks}{RESULTS_END}\nafter\n"
    for other in (head.replace("Kafka", "floor"), head.replace("machine: a", "machine: b")):
        with pytest.raises(ValueError, match="other columns, versions or another machine"):
            with_results(document, other + block("W1", 3))


def test_numbers_keep_three_digits():
    assert [number(value) for value in (12345.6, 123.4, 12.34, 1.234, 0.01234)] == [
        "12,346", "123", "12.3", "1.23", "0.012",
    ]  # fmt: skip


HEAD = "- machine: a\n- columns: Kafka"


def table(row: str, value: int, met: str = "yes") -> str:
    return (
        f"## {row}: title of {row}\n\n| figure | Kafka | goal | met |\n|---|---:|---:|---:|\n"
        f"| rate | {value} | ≥ 1 x; ≤ 2 | {met} |\n| memory | 1 |  |  |"
    )


def results(*parts: str) -> str:
    return "\n\n".join([HEAD, *parts])


def pages(head: str, writes: str, reads: str) -> dict[str, str]:
    return {
        "all.md": f"# All\n\n{RESULTS_START}\n{head}\n{RESULTS_END}\nthe end\n",
        "all/reads.md": f"# Reads\n\n<!-- results of W3, W5 -->\n{reads}\n{RESULTS_END}\n",
        "all/writes.md": f"# Writes\n\n<!-- results of W2, W10 -->\n{writes}\n{RESULTS_END}\nthe end\n",
    }


def goals_met(*rows: str) -> str:
    return "\n\n".join([HEAD, GOALS_MET, "\n".join(rows)])


def test_pages_have_the_tables_of_the_workloads_that_they_name():
    failed = "- W3 failed on kafka: x"
    first = pages_with_results(
        pages("", "", ""), results(table("W2", 1), table("W3", 1, "no: 9 x; yes (2 of 3)"), failed)
    )
    second_and_third = [
        "- W2, [title of W2](all/writes.md): 1 of 1",
        "- W3, [title of W3](all/reads.md): 1 of 2",
    ]
    reads = table("W3", 1, "no: 9 x; yes (2 of 3)")
    assert first == pages(goals_met(*second_and_third), table("W2", 1), f"{reads}\n\n{failed}")

    # Workloads that were not measured again stay, with what is told about their failures.
    second = pages_with_results(first, results(table("W10", 2, "?")))
    tenth = "- W10, [title of W10](all/writes.md): 0 of 1"
    writes = f"{table('W2', 1)}\n\n{table('W10', 2, '?')}"
    assert second == pages(goals_met(*second_and_third, tenth), writes, f"{reads}\n\n{failed}")

    third = pages_with_results(second, results(table("W3", 3)))
    told = [second_and_third[0], "- W3, [title of W3](all/reads.md): 1 of 1", tenth]
    assert third == pages(goals_met(*told), writes, table("W3", 3))

    assert (
        pages_with_results(pages("", "", ""), HEAD)["all/reads.md"]
        == pages("", "", "Not measured yet.")["all/reads.md"]
    )


def test_pages_that_cannot_be_written():
    written = pages_with_results(pages("", "", ""), results(table("W2", 1)))
    with pytest.raises(ValueError, match="no page is for W4, W6"):
        pages_with_results(written, results(table("W4", 1), table("W6", 1)))
    with pytest.raises(ValueError, match="other columns, versions or another machine"):
        pages_with_results(written, results(table("W3", 1)).replace("machine: a", "machine: b"))
    with pytest.raises(ValueError, match=r"all/more\.md has no <!-- results of"):
        pages_with_results({**written, "all/more.md": "no marks"}, results(table("W2", 1)))


def test_pages_are_those_in_the_folder_of_a_documents_name(tmp_path):
    (tmp_path / "all").mkdir()
    for path, text in pages("", "", "").items():
        (tmp_path / path).write_text(text)
    (tmp_path / "alone.md").write_text(f"{RESULTS_START}\n{RESULTS_END}\n")
    new = results(table("W2", 1), table("W3", 1))
    for name in ("all.md", "alone.md"):
        write(tmp_path / name, new)
    assert {path: (tmp_path / path).read_text() for path in pages("", "", "")} == pages_with_results(
        pages("", "", ""), new
    )
    assert (tmp_path / "alone.md").read_text() == f"{RESULTS_START}\n{new}\n{RESULTS_END}\n"


DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    str(page.relative_to(DOCS / "benchmarks")): page.read_text()
    for page in [DOCS / "benchmarks/results.md", *sorted(DOCS.glob("benchmarks/results/*.md"))]
}


def test_the_tables_in_the_docs_equal_the_measurements():
    runs = [Run.from_json(file.read_text()) for file in sorted(DOCS.glob("benchmarks*.json"))]
    measured = markdown(together(runs))
    assert pages_with_results(PAGES, measured) == PAGES, "run python -m benchmarks.report ... --into"
    tables = re.findall(r"^## (W\d+): ", "\n".join(PAGES.values()), re.MULTILINE)
    assert sorted(tables) == sorted(re.findall(r"^## (W\d+): ", measured, re.MULTILINE))


def test_each_workload_has_one_page():
    marks = re.findall(r"<!-- results of (.*) -->", "\n".join(PAGES.values()))
    rows = [row for mark in marks for row in mark.split(", ")]
    assert sorted(rows) == sorted(workload.row for workload in WORKLOADS)
