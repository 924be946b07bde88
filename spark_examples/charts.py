"""Plots for a page that needs nothing else: SVG, made here."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 14, 44
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
TICKS = 4

Point = tuple[float, float]


def bar_chart(title: str, labels: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Bars side by side, each with its value in a tooltip."""
    top = max(values, default=0) or 1
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    shapes = _axis(top, unit)
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        height = (HEIGHT - TOP - BOTTOM) * value / top
        x, y = LEFT + index * step, HEIGHT - BOTTOM - height
        tooltip = f"<title>{escape(label)}: {short(value)} {escape(unit)}</title>"
        shapes += (
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[0]}">{tooltip}</rect>'
        )
        if len(labels) <= 24:
            shapes += _text(x + step / 2, HEIGHT - BOTTOM + 16, label, "middle")
    return _figure(title, shapes)


def line_chart(title: str, series: Mapping[str, Sequence[Point]], ends: tuple[str, str], unit: str) -> str:
    """A line for each series of (x, y); `ends` are the labels of the smallest and the greatest x."""
    points = [point for line in series.values() for point in line]
    top = max((y for _, y in points), default=0) or 1
    first, last = min((x for x, _ in points), default=0), max((x for x, _ in points), default=1)
    across, down = (WIDTH - LEFT - RIGHT) / ((last - first) or 1), (HEIGHT - TOP - BOTTOM) / top
    shapes = _axis(top, unit) + _text(LEFT, HEIGHT - BOTTOM + 16, ends[0], "start")
    shapes += _text(WIDTH - RIGHT, HEIGHT - BOTTOM + 16, ends[1], "end")
    for index, (name, line) in enumerate(sorted(series.items())):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{LEFT + (x - first) * across:.1f},{HEIGHT - BOTTOM - y * down:.1f}" for x, y in line)
        shapes += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        shapes += _text(LEFT + 10 + 150 * (index % 5), HEIGHT - 6 - 12 * (index // 5), name, "start", colour)
    return _figure(title, shapes)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers to the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{lines}</table>"


def page(title: str, introduction: str, parts: Sequence[str]) -> str:
    """A whole HTML page."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#1f2937}"
        "table{border-collapse:collapse;width:100%}th,td{padding:.2em .6em;border-bottom:1px solid #e5e7eb;text-align:"
        "left}td.number{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%}h2{margin:1.6em 0 .4em}"
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


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:{",.1f" if isinstance(value, float) else ","}}</td>'
    return f"<td>{escape(str(value))}</td>"


def _axis(top: float, unit: str) -> str:
    lines = ""
    for tick in range(TICKS + 1):
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * tick / TICKS
        lines += f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        lines += _text(LEFT - 6, y + 4, short(top * tick / TICKS), "end")
    return lines + _text(4, TOP + 2, unit, "start")


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#4b5563") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(title: str, shapes: str) -> str:
    return f'<h2>{escape(title)}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{shapes}</svg>'
