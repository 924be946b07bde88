"""Plots for an HTML page, as SVG: the page needs no other file."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, PLOT_HEIGHT = 760, 180
LEFT, RIGHT, TOP = 70, 60, 28
BASE_LINE = TOP + PLOT_HEIGHT
LABELS_Y, LEGEND_Y, LINE_HEIGHT = BASE_LINE + 16, BASE_LINE + 36, 15
FONT_SIZE = 11
CHARACTER_WIDTH = 6.6
"""The largest average width of that font's characters; the width of a text is not known before it is shown."""
GAP = 14
"""The gap between texts beside each other."""
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
MOST_TICKS = 5
MOST_TIMES = 5
"""The number at which the longest labels, with date and time, still have room."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
TIME_STEPS_S = (
    *(minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)), *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_S for days in (1, 2)),
)  # fmt: skip
DAYS_OF_MONTHS = ((1, 6, 11, 16, 21, 26), (1, 11, 21), (1, 16))
MONTH_STEPS = (1, 2, 3, 6, 12, 24, 36, 60, 120, 240)

Point = tuple[float, float]


def bar_chart(title: str, labels: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Bars side by side, each with its value in a tooltip; where labels would overlap, only some bars have theirs."""
    ticks = round_ticks(max(values, default=0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    labelled = math.ceil((max(map(_width, labels), default=0) + GAP) / step)
    shapes = _axis(ticks, unit)
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        height = PLOT_HEIGHT * value / ticks[-1]
        x, y = LEFT + index * step, BASE_LINE - height
        tooltip = f"<title>{escape(label)}: {short(value)} {escape(unit)}</title>"
        shapes += (
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[0]}">{tooltip}</rect>'
        )
        if index % labelled == 0:
            shapes += _text(x + step / 2, LABELS_Y, label, "middle")
    return _figure(title, shapes, LEGEND_Y - LINE_HEIGHT)


def line_chart(title: str, series: Mapping[str, Sequence[Point]], unit: str) -> str:
    """A line for each series of (seconds since the epoch, y)."""
    points = [point for line in series.values() for point in line]
    first, last = min((x for x, _ in points), default=0), max((x for x, _ in points), default=1)
    ticks = round_ticks(max((y for _, y in points), default=0))
    across, down = (WIDTH - LEFT - RIGHT) / ((last - first) or 1), PLOT_HEIGHT / ticks[-1]
    shapes = _axis(ticks, unit)
    for at, label in round_times(first, last):
        x = LEFT + (at - first) * across
        shapes += f'<line x1="{x:.1f}" y1="{BASE_LINE}" x2="{x:.1f}" y2="{BASE_LINE + 4}" stroke="#9ca3af"/>'
        shapes += _text(x, LABELS_Y, label, "middle")
    for index, line in enumerate(line for _, line in sorted(series.items())):
        path = " ".join(f"{LEFT + (x - first) * across:.1f},{BASE_LINE - y * down:.1f}" for x, y in line)
        colour = COLOURS[index % len(COLOURS)]
        shapes += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    legend, height = _legend(sorted(series))
    return _figure(title, shapes + legend, height)


def _legend(names: Sequence[str]) -> tuple[str, float]:
    """Names side by side in their lines' colours, in as many rows as they need; and where the last one ends."""
    shapes, x, y = "", float(LEFT), LEGEND_Y
    for index, name in enumerate(names):
        if x > LEFT and x + _width(name) > WIDTH:
            x, y = LEFT, y + LINE_HEIGHT
        shapes += _text(x, y, name, "start", COLOURS[index % len(COLOURS)])
        x += _width(name) + GAP
    return shapes, y + LINE_HEIGHT / 2


def round_ticks(top: float) -> list[float]:
    """Ticks from 0 in equal steps of 1, 2 or 5 times a power of ten to `top` or just above, at most MOST_TICKS."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top / MOST_TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * MOST_TICKS >= top * (1 - 1e-9))
    return [number * step for number in range(math.ceil(top / step * (1 - 1e-9)) + 1)]


def round_times(first: float, last: float) -> list[tuple[int, str]]:
    """Whole minutes, hours, days or months (UTC) within a range, evenly spread and labelled; at most MOST_TIMES."""
    for step in TIME_STEPS_S:
        times = range(math.ceil(first / step) * step, math.floor(last) + 1, step)
        if len(times) <= MOST_TIMES:
            form = "%Y-%m-%d" if step % DAY_S == 0 else "%Y-%m-%d %H:%M"
            return [(at, datetime.fromtimestamp(at, UTC).strftime(form)) for at in times]
    begin, end = (datetime.fromtimestamp(each, UTC) for each in (first, last))
    months = range(begin.year * 12 + begin.month - 1, end.year * 12 + end.month)
    for days in DAYS_OF_MONTHS:
        dates = [datetime(month // 12, month % 12 + 1, day, tzinfo=UTC) for month in months for day in days]
        dates = [date for date in dates if begin <= date <= end]
        if len(dates) <= MOST_TIMES:
            return [(int(date.timestamp()), date.strftime("%Y-%m-%d")) for date in dates]
    months = range(months.start + 1, months.stop)  # from the first whole one
    step = next((step for step in MONTH_STEPS if len(months) <= step * (MOST_TIMES - 1)), len(months))
    firsts = [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in months if month % step == 0]
    return [(int(day.timestamp()), day.strftime("%Y-%m")) for day in firsts]


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers to the right."""
    head = "".join(_head(name, [row[index] for row in rows]) for index, name in enumerate(columns))
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{lines}</table>"


def page(title: str, introduction: str, parts: Sequence[str]) -> str:
    """A whole HTML page."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#1f2937}"
        "table{border-collapse:collapse;width:100%}th,td{padding:.2em .6em;border-bottom:1px solid #e5e7eb;text-align:"
        "left}.number{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%}h2{margin:1.6em 0 .4em}"
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><h1>{escape(title)}</h1><p>{escape(introduction)}</p>{''.join(parts)}"
        "</body></html>\n"
    )


def short(value: float) -> str:
    """A number for people: 1.2 k, 3.4 M; none is longer than needed."""
    for factor, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:.4g}{name}"
    return f"{value:.4g}"


def _head(name: str, values: Sequence[object]) -> str:
    kind = ' class="number"' if any(isinstance(value, int | float) for value in values) else ""
    return f"<th{kind}>{escape(name)}</th>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:{",.1f" if isinstance(value, float) else ","}}</td>'
    return f"<td>{escape(str(value))}</td>"


def _axis(ticks: Sequence[float], unit: str) -> str:
    lines = ""
    for tick in ticks:
        y = BASE_LINE - PLOT_HEIGHT * tick / ticks[-1]
        lines += f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        lines += _text(LEFT - 6, y + 4, short(tick), "end")
    return lines + _text(LEFT, TOP - 12, unit, "start")


def _width(text: str) -> float:
    return len(text) * CHARACTER_WIDTH


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#4b5563") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{FONT_SIZE}" fill="{colour}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _figure(title: str, shapes: str, height: float) -> str:
    return f'<h2>{escape(title)}</h2><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{shapes}</svg>'
