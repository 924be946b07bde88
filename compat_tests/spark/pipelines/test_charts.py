"""The plots of capacity_report's page: axes with round numbers and times, and texts that do not overlap."""

import random
import re
from itertools import combinations

import pytest

from barnabas.spark_examples.capacity_report import size_label
from barnabas.spark_examples.charts import (
    CHARACTER_WIDTH,
    FONT_SIZE,
    MOST_TICKS,
    MOST_TIMES,
    WIDTH,
    bar_chart,
    line_chart,
    page,
    round_ticks,
    round_times,
    table,
)  # fmt: skip

FIRST = 1_357_034_460  # 2013-01-01 10:01 UTC
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def boxes(figure: str) -> list[tuple[float, float, float, str]]:
    """Left, right, base line and text of each text, by a width of characters that is seldom exceeded."""
    found = []
    for x, y, anchor, text in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" [^>]*text-anchor="(\w+)">([^<]*)', figure):
        width = len(text) * 0.9 * CHARACTER_WIDTH
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        found.append((left, left + width, float(y), text))
    return found


def check_texts(figure: str) -> None:
    [height] = re.findall(r'viewBox="0 0 \d+ (\d+)"', figure)
    placed = boxes(figure)
    for left, right, y, text in placed:
        assert left >= 0, text
        assert right <= WIDTH, text
        assert y <= float(height), text
    for (left, right, y, text), (other_left, other_right, other_y, other) in combinations(placed, 2):
        beside = right < other_left or other_right < left
        assert beside or abs(y - other_y) >= FONT_SIZE, f"{text!r} overlaps {other!r}"


@pytest.mark.parametrize("top", [0.003, 0.7, 1, 3, 5, 7, 10, 11, 99, 100, 101, 8_437, 73_333, 1.3e9])
def test_numbers_are_round(top: float) -> None:
    ticks = round_ticks(top)
    step = ticks[1]
    assert float(f"{step:.0e}") == pytest.approx(step), "one digit, then zeros"
    assert f"{step:.0e}"[0] in "125"
    assert 2 <= len(ticks) <= MOST_TICKS + 1
    assert ticks[-2] < top <= ticks[-1] * (1 + 1e-9)


def test_nothing_has_an_axis() -> None:
    assert round_ticks(0) == [0, 1]
    check_texts(line_chart("empty", {}, "messages"))
    check_texts(bar_chart("empty", [], [], "messages"))


@pytest.mark.parametrize(
    ("span_s", "labels"),
    [
        (0, ["2013-01-01 10:01"]),
        (2 * HOUR_S, ["2013-01-01 10:30", "2013-01-01 11:00", "2013-01-01 11:30", "2013-01-01 12:00"]),
        (DAY_S, ["2013-01-01 12:00", "2013-01-01 18:00", "2013-01-02 00:00", "2013-01-02 06:00"]),
        (10 * DAY_S, ["2013-01-03", "2013-01-05", "2013-01-07", "2013-01-09", "2013-01-11"]),
        (20 * DAY_S, ["2013-01-06", "2013-01-11", "2013-01-16", "2013-01-21"]),
        (55 * DAY_S, ["2013-01-11", "2013-01-21", "2013-02-01", "2013-02-11", "2013-02-21"]),
        (80 * DAY_S, ["2013-01-16", "2013-02-01", "2013-02-16", "2013-03-01", "2013-03-16"]),
        (366 * DAY_S, ["2013-04", "2013-07", "2013-10", "2014-01"]),
    ],
)
def test_times_are_round(span_s: int, labels: list[str]) -> None:
    assert [label for _, label in round_times(FIRST, FIRST + span_s)] == labels


@pytest.mark.parametrize("span_s", [int(MINUTE_S * 1.3**power) for power in range(60)])
def test_times_have_room(span_s: int) -> None:
    found = round_times(FIRST, FIRST + span_s)
    assert (2 if span_s > 2 * MINUTE_S else 1) <= len(found) <= MOST_TIMES  # one alone tells no distance
    check_texts(line_chart("x", {"flights": [(FIRST, 1), (FIRST + span_s, 8_437)]}, "messages a minute"))


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_names_of_lines_have_room(count: int) -> None:
    names = [f"orders-of-department-{number}-in-a-country" for number in range(count)]
    check_texts(line_chart("x", {name: [(FIRST, 1), (FIRST + DAY_S, 2)] for name in names}, "messages a minute"))


@pytest.mark.parametrize("count", [1, 5, 24, 25, 100, 1000])
def test_labels_of_bars_have_room(count: int) -> None:
    values = [random.Random(count).random() * 73_333 for _ in range(count)]
    partitions = bar_chart("partitions", [str(number) for number in range(count)], values, "messages")
    check_texts(partitions)
    assert partitions.count("<rect") == count
    assert "0" in [text for *_, text in boxes(partitions)]
    sizes = [size_label(0), *(size_label(1 << exponent) for exponent in range(min(count, 31)))]
    check_texts(bar_chart("sizes", sizes, [1.0] * len(sizes), "messages"))


def test_heads_of_numbers_stand_above_them() -> None:
    text = table("Topics", ["topic", "messages"], [["flights", 50_000], ["none", "-"]])
    assert '<th>topic</th><th class="number">messages</th>' in text
    assert "}.number{text-align:right" in page("Capacity", "", [text])


def test_sizes_are_told_in_binary_units() -> None:
    assert [size_label(size) for size in (0, 1, 512, 1024, 1 << 19, 1 << 20, 1 << 30)] == [
        "0 B", "1 B", "512 B", "1 KiB", "512 KiB", "1 MiB", "1 GiB"
    ]  # fmt: skip
