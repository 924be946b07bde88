from pathlib import Path

import pytest

from benchmarks.model import Figure, Measurement, at_least, at_most, no_more_than
from benchmarks.report import RESULTS_END, RESULTS_START, Run, cells, lines, markdown, number, together, with_results
from benchmarks.spread import Spread
from benchmarks.system import BARNABAS, FLOOR, KAFKA, KFAKE, MESH

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
        "### W1: produce",
        "",
        "today, 3 pairs.",
        "",
        "| figure | Barnabas | Apache Kafka | floor | Barnabas / Kafka | goal | met |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| rate, MiB/s | 300 | 200 | 900 | 1.50 (1.00 - 1.60) | ≥ 1.3 x | yes (2 of 3) |",
        "| CPU, s/GiB | 1.10 | 4.00 | 0.50 | 0.25 (0.20 - 0.50) | ≤ 0.4 x; ≤ 1.5 x floor | yes (2 of 3); no: 2.20 x |",
        "",
        "### W2: defaults: failed",
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
        return f"\n\n### {row}: title\n\n| figure | Kafka |\n|---|---:|\n| rate | {value} |"

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


def test_the_tables_in_the_docs_equal_the_measurements():
    docs = Path(__file__).parents[2] / "docs"
    runs = [Run.from_json(file.read_text()) for file in sorted(docs.glob("benchmarks*.json"))]
    page = (docs / "benchmarks/results.md").read_text()
    assert with_results(page, markdown(together(runs))) == page, "run python -m benchmarks.report ... --into"
